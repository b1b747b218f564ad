"""Families whose checkpoints come with code, which is never run: other families' arithmetic, under their own names.

transformers has no class for them. `llama_like`: those near Llama.
"""
