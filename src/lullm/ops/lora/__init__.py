"""Adapters (LoRA) of linear layers.

`weights` are those of one layer, in places beside each other. `masked` is the op in torch, on any device; `reference`
defines the result.
"""
