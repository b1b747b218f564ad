"""Folders in Mistral's own layout: params.json, consolidated*.safetensors and tekken.json.

`params` reads the first as the config.json of the same model in transformers' layout; `layout` tells the two apart.
"""
