"""Adapters (LoRA), from PEFT's folders to their places beside the weights.

`layers` are those that may have adapters, `reading` makes one adapter of a folder, `places` is the memory of those in
use.
"""
