"""The fp8 KV cache: e4m3 values (`torch.float8_e4m3fn`), with one float32 scale per layer, side and head.

    value = e4m3 * scale[head]

A cache is one tensor `[num_blocks, block_size, Hkv, D]` of one byte per value. The scales are outside of it. Blocks are
valid only with the scales that they were written with, so scales may change only while no block is in use.

Rounded to nearest, ties to even; values beyond 448 scales saturate, NaN stays NaN. From 2**-6 to 448, steps of e4m3 are
1/16 to 1/8 of the value; below, they are 2**-9. A scale moves only this range: nearly all models fit with scales of 1
(format: https://arxiv.org/abs/2209.05433).
"""

import torch
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
FLOAT8_MAX = 448.0


def quantize(x: Tensor, scales: Tensor | None) -> Tensor:
    """`x [..., Hkv, D]` in e4m3, divided by `scales [Hkv]`; None: all are 1."""
    x = x.float()
    if scales is not None:
        x = x / scales[:, None]
    # Clamped first: the conversion may not saturate.
    return x.clamp(-FLOAT8_MAX, FLOAT8_MAX).to(FLOAT8)


def dequantize(values: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The values of e4m3 `values [..., Hkv, D]` with `scales [Hkv]`, in `dtype`; rounded once."""
    # By a table of all 256 bytes for each head: torch's conversion takes 4 times as long on a CPU (22 ms instead of 5
    # for 32 x 160 tokens of 8 x 128 to bfloat16), and the scales cost nothing this way.
    num_heads = values.shape[-2]
    table = torch.arange(256, dtype=torch.uint8, device=values.device).view(FLOAT8).float().expand(num_heads, 256)
    if scales is not None:
        table = table * scales[:, None]
    first_entries = torch.arange(0, 256 * num_heads, 256, dtype=torch.int32, device=values.device)[:, None]
    entries = values.view(torch.uint8) + first_entries
    return table.to(dtype).reshape(-1).index_select(0, entries.view(-1)).view(values.shape)


def as_bytes(cache: Tensor) -> Tensor:
    """The same memory as a type that all torch functions copy; few take fp8."""
    return cache.view(torch.uint8) if cache.dtype == FLOAT8 else cache
