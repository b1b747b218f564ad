"""What an encoder reads of requests, found in prompts, checked, made a tile: `sounds`, or `texts`; and the `rules`
of a model's files for outputs.
"""
