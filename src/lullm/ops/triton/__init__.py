"""Ops as Triton kernels, for a GPU. Imported by `ops.selection.select_ops` only on demand.

Triton's interpreter runs the kernels on a CPU, slowly: set TRITON_INTERPRET=1 in the environment before triton is first
imported. Tests without a GPU do so.

`table` names the versions, `launch` and `overlap` start kernels, `tile` has their sizes. `product/` multiplies
matrices, `layer/` replaces an MLP or attention.
"""
