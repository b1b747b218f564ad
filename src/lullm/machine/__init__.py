"""Facts of this machine: its processor, memory and memory nodes. No torch.

`cores` gives each of several workers cores of its own; `memory_ahead` takes memory before it is needed.
"""
