"""One plan on one device: its batch, the input at fixed addresses, recorded decodes, block moves, the run itself.

`runner` does a plan. `batch` makes numbers of it, `staging` brings all of them to the device in one copy (`stage_parts`
is its layout, `limits` its size), `input` has them as the model reads them, with the tokens that `feedback` fills in.
`graphs` records and replays; `block_move` moves blocks around it all; `pooling` adds rows up; `relay` hands rows from
one stage of a pipeline to the next. `first_touch` takes the memory of blocks that were never written.
"""
