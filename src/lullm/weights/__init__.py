"""From a model folder to parameters in an arena.

`folder` finds it, `headers` compares its files with the config, `loader` streams tensors through the rules of the model
(`rule`, `target`), `store` keeps versions and takes updates, `quantization` chooses the matrices to quantize. `storage`
chooses the format of matrices in memory, `materialize` places them in the arena, `packing` puts them in the ops' order;
`dummy` weights are random.

- `reading/`: the files of a checkpoint, and progress. `hub/`: downloads, and the cache.
- `rows/`: the place of a tensor, and a worker's part of it.
- `encoding/`: tensors that a checkpoint holds as several others (compressed-tensors, AWQ, GPTQ, FP8, MXFP4).
- `lora/`: adapters, and the places of those in use.
- `gguf/`: a GGUF file's tensors under a checkpoint's names.
"""
