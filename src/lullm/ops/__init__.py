"""The table of functions every model is written against, and the versions that fill it.

`table` declares them, `selection` fills a row for a device; `reference` is the golden one, which says what each means.

- In torch: `torch_cpu`, with `grouped_attention`; `in_place`, `activation` and `head_products` on any device.
- What attention reads of a step: `attention_layout`, on a device `device_layout`. What draws read: `draw_table`.
- `threads`: how many work on a step.
- `cpu/`: native C++ for x86-64 and ARM64. `triton/`: kernels for a GPU, loaded for one only.
- `cache/`: one layer's keys and values, and its 8-bit formats. `state/`: recurrent states in blocks.
- `quantized/`: 8- and 4-bit weights, and the grids of GGUF files. `experts/`: routing, and mixtures of experts.
"""
