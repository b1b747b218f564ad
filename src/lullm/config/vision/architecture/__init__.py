"""Reads the pictures of each architecture from config.json. `table`: all of them, and what their text models may be.

A file for each kind: `llava`, `tiles`, `pixtral`, `gemma`, `qwen_vl`, `phi4`; `shared`: what they share.
"""
