"""From a model folder to parameters in an arena.

`folder` finds it, `headers` compares its files with the config, `loader` streams tensors through the rules of the model
(`rule`, `target`), `store` keeps versions and takes updates, `quantization` makes small weights of large ones.
`storage` decides how matrices lie in memory, `materialize` gives them their place in the arena, `packing` the order
that ops read; `dummy` weights are random.

- `reading/`: which files there are, and progress. `hub/`: fetching, and the cache.
- `rows/`: where a tensor is written to, and which part of it a worker has.
- `encoding/`: tensors that a checkpoint holds as several others (compressed-tensors, AWQ, GPTQ, FP8, MXFP4).
- `gguf/`: a GGUF file's tensors under a checkpoint's names.
"""
