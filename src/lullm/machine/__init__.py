"""Facts of this machine: its processor, memory and memory nodes. No torch.

`processor` says what of the processor this process may use, `cores` gives each of several workers cores of its own.
`memory` is what is free and what is held, `pages` is memory from the kernel, `numa` its nodes; `memory_ahead` takes
some before it is needed. `owner` tells a process from its forks.
"""
