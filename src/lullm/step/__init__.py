"""One plan on one device: its batch, the input at fixed addresses, recorded decodes, block moves, the run itself.

`runner` runs a plan. `batch` makes numbers of it, and `staging` copies all of them to the device at once (`stage_parts`
is its layout, `limits` its size). `input` makes the tensors that the model reads, with tokens from `feedback`. `graphs`
records and replays; `block_move` moves blocks around all of it; `pooling` adds rows up; `relay` passes rows from one
stage of a pipeline to the next. `first_touch` takes the memory of blocks that were never written. `vision/`:
rows of pictures. `encoder/`: of an encoder.
"""
