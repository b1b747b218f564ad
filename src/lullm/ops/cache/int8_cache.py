"""The int8 KV cache: a row holds the D values of one head of one token as int8, then their scale.

    value = int8 * scale,  scale = max |value| / 127, as float16 in the next two bytes

So a cache is one tensor `[num_blocks, block_size, Hkv, D + 2]`. Scales are copied, swapped and saved with their block,
and no other code handles them. Rows are longer if layers of several sizes share blocks (`kv.layout.side_len`).
Symmetric, per token and head, rounded to nearest: the error of a value is at most half a scale, 0.4 % of the largest
value in its row.
"""

import torch
from torch import Tensor

from lullm.kv.layout import SCALE_BYTES

_MIN_SCALE = 2.0**-24  # the smallest float16 above 0; rows of zeros get it


def quantize(x: Tensor) -> Tensor:
    """Rows `[..., D + 2]` int8 of `x [..., D]`."""
    x = x.float()
    # Divide by the stored, rounded scale, so that its rounding adds no error.
    scales = (x.abs().amax(-1, keepdim=True) / 127).clamp_min_(_MIN_SCALE).half()
    values = (x / scales.float()).round_().clamp_(-127, 127).to(torch.int8)
    return torch.cat((values, scales.view(torch.int8)), dim=-1)


def dequantize(rows: Tensor, dtype: torch.dtype, head_size: int | None = None) -> Tensor:
    """The values `[..., D]` in `dtype` of `rows [..., D + 2]`; rows may be longer if `head_size` gives D."""
    head_size = rows.shape[-1] - SCALE_BYTES if head_size is None else head_size
    values, scales = rows[..., :head_size], rows[..., head_size : head_size + SCALE_BYTES]
    return (values * scales.contiguous().view(torch.float16).float()).to(dtype)
