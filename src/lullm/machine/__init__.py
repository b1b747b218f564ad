"""Facts of this machine: its processor, memory, memory nodes and GPUs. No torch.

`processor` has the CPUs that this process may use, `cores` divides them between workers. `memory` tells free and used
memory, `pages` is memory from the kernel, `numa` its nodes; `memory_ahead` touches some before it is needed.
`gpu` lists NVIDIA GPUs, for `device="auto"`.
`control_group` says where the limits of both stand. `owner` tells a process from its forks. `imports` tries
libraries in another process.
"""
