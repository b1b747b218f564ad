"""Products with own kernels: `few_rows` where cuBLAS is slower, `invariant` where it is not batch-invariant."""
