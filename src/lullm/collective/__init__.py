"""Communication of tensors between workers: sums, joined columns, hidden states for the next stage.

`collective` lists the calls, which every member makes in the same order; `message` gathers bytes of any length. `seat`
is a worker's placement with its groups; `torch_group` is a group over gloo or NCCL.
"""
