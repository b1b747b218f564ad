"""Ops as Triton kernels, for a GPU. Nothing here is imported before `ops.selection.select_ops` asks for it.

The kernels also run on a CPU, slowly, through Triton's interpreter: with TRITON_INTERPRET=1 in the environment before
triton is first imported. That is how they are tested where there is no GPU.
"""
