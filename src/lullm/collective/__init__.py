"""What workers say to each other about tensors: sums, joined columns, hidden states for the next stage.

`collective` lists the calls, which every member makes in the same order; `message` gathers bytes of any length. `seat`
says where a worker stands, and in which groups; `torch_group` is a group over gloo or NCCL.
"""
