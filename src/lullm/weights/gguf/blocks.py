"""The blocks of a GGUF tensor: taken apart without rounding (`GridRows`), and the numbers that they mean.

Layouts: ggml's `ggml-common.h`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lullm.config.gguf.format import BlockFormat
from lullm.ops.quantized.grid import GridRows


def take_apart(block: BlockFormat, raw: Tensor) -> GridRows:
    """The parts of `raw [n, row_bytes]` uint8, rows of a tensor of Q8_0, Q4_0, Q4_K, Q5_K or Q6_K."""
    return _PARTS[block.name](raw.unflatten(1, (-1, block.num_bytes)))


def decode_rows(block: BlockFormat, raw: Tensor) -> Tensor:
    """The values of `raw [n, row_bytes]` uint8, rows of a tensor: `[n, in]` of its type, float32 for blocks."""
    if block.name in _DTYPES:
        return raw.view(_DTYPES[block.name])
    if block.name == "MXFP4":
        return _decode_mxfp4(raw.unflatten(1, (-1, block.num_bytes)))
    return take_apart(block, raw).decode()


_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _halves(raw: Tensor) -> Tensor:  # [n, S, 2] -> float16 [n, S]
    return raw.contiguous().view(torch.float16).squeeze(-1)


def _nibbles(raw: Tensor, run: int) -> Tensor:
    """Of runs of `run` bytes first the low digits, then the high ones: `[n, S, b] -> [n, S, 2 b]`."""
    runs = raw.unflatten(2, (-1, 1, run))
    return torch.cat((runs & 15, runs >> 4), dim=3).flatten(2)


def _q8_0(raw: Tensor) -> GridRows:  # float16, 32 int8
    return GridRows(raw[..., 2:].view(torch.int8).flatten(1), _halves(raw[..., :2]))


def _q4_0(raw: Tensor) -> GridRows:  # float16, 32 digits + 8
    return GridRows((_nibbles(raw[..., 2:], 16).view(torch.int8) - 8).flatten(1), _halves(raw[..., :2]))


def _q4_k(raw: Tensor) -> GridRows:  # two float16, 12 bytes of codes, 256 digits
    scales, mins = _six_bits(raw[..., 4:16])
    return GridRows(_nibbles(raw[..., 16:], 32).flatten(1), _halves(raw[..., :2]), scales, _halves(raw[..., 2:4]), mins)


def _q5_k(raw: Tensor) -> GridRows:  # as Q4_K, with 32 bytes of fifth bits before the digits
    scales, mins = _six_bits(raw[..., 4:16])
    fifth = torch.stack([raw[..., 16:48] >> bit & 1 for bit in range(8)], dim=2).flatten(2)
    digits = _nibbles(raw[..., 48:], 32) | fifth << 4
    return GridRows(digits.flatten(1), _halves(raw[..., :2]), scales, _halves(raw[..., 2:4]), mins)


def _q6_k(raw: Tensor) -> GridRows:  # 256 x 4 low bits, 256 x 2 high bits, 16 int8, float16
    low = _nibbles(raw[..., :128], 64)
    pairs = raw[..., 128:192].unflatten(2, (2, 1, 32))
    high = torch.cat([pairs >> shift & 3 for shift in (0, 2, 4, 6)], dim=3).flatten(2)
    digits = (low | high << 4).view(torch.int8) - 32
    return GridRows(digits.flatten(1), _halves(raw[..., 208:]), raw[..., 192:208].view(torch.int8).flatten(1))


def _six_bits(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Eight codes of scales and eight of minimums `[n, S * 8]`, of 12 bytes."""
    scales, mins, mixed = raw.split(4, dim=-1)
    high_scales, high_mins = mixed & 15 | scales >> 2 & 48, mixed >> 4 | mins >> 2 & 48
    codes = torch.cat((scales & 63, high_scales), dim=-1).flatten(1)
    return codes.view(torch.int8), torch.cat((mins & 63, high_mins), dim=-1).flatten(1)


_PARTS: dict[str, Callable[[Tensor], GridRows]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def narrow_blocks(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Of `raw [n, row_bytes]` uint8, rows of a tensor of MXFP4: digits `[n, G, 16]`, two neighbours a byte, and
    exponents `[n, G]`."""
    blocks = raw.unflatten(1, (-1, 17))
    digits = torch.cat((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), dim=-1)  # a block's first half is in the low bits
    return digits[..., ::2] | digits[..., 1::2] << 4, blocks[..., 0]


_HALVED = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Twice the magnitudes of e2m1: 2 to the power of a scale's bits - 128, not - 127, makes up for it."""


def _decode_mxfp4(raw: Tensor) -> Tensor:  # a byte of a scale, 32 digits
    table = torch.tensor([*_HALVED, *(-value for value in _HALVED)], dtype=torch.float32, device=raw.device)
    digits = _nibbles(raw[..., 1:], 16)
    exponents = raw[..., :1].int() - 128
    return torch.ldexp(table[digits.int()], exponents).flatten(1)
