"""Memory for large tensors: an engine reserves addresses once and keeps them; the memory behind them comes and goes.

`backend` lists the eight calls that a kind of memory has to offer, `arena` what is made of them. `backup` saves
contents with checksums, `pinned` is host memory that a GPU copies from, `workspace` holds what recorded steps leave.

- `driver/`: the memory of GPUs and NPUs.
"""
