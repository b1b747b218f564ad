"""The table of functions that every model is written against, and the versions that fill it.

`table` declares them, `selection` chooses a version for a device; `reference` is the golden one and defines each
result.

- In torch: `torch_cpu`, with `grouped_attention`; `in_place`, `activation` and `head_products` on any device.
- A step's input to attention: `attention_layout`, on a device `device_layout`. Parameters of draws: `draw_table`.
- `threads`: how many work on a step.
- `cpu/`: native C++ for x86-64 and ARM64. `triton/`: kernels for a GPU, loaded for one only.
- `cache/`: one layer's keys and values, and its 8-bit formats. `state/`: recurrent states in blocks.
- `quantized/`: 8- and 4-bit weights, and the grids of GGUF files. `experts/`: routing, and mixtures of experts.
- `lora/`: adapters of linear layers.
"""
