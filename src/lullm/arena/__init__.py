"""Memory for large tensors: an engine reserves addresses once and keeps them; the memory behind them comes and goes.

`backend` lists the eight calls of a kind of memory, `arena` is built on them. `backup` saves contents with checksums,
`pinned` is host memory that a GPU copies from, `workspace` holds the results of recorded steps.

- Kinds of memory: `host`, and those in `driver/`. `address_range`: chunks of reserved addresses, mapped or released.
- A backup: `chunk_store` (in RAM or in a file), `chunk_copies`, `transfer` (in order), `checksum`.
- `driver/`: the memory of GPUs and NPUs.
"""
