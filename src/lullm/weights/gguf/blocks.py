"""The blocks of a GGUF tensor: their parts without rounding (`GridRows`), and their values.

Layouts: ggml's `ggml-common.h`.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from lullm.config.gguf.format import BlockFormat
from lullm.errors import ModelLoadError
from lullm.ops.quantized.grid import GridRows


def take_apart(block: BlockFormat, raw: Tensor) -> GridRows:
    """The parts of `raw [n, row_bytes]` uint8, rows of a tensor of blocks."""
    return _PARTS[block.name](raw.unflatten(1, (-1, block.num_bytes)))


def decode_rows(block: BlockFormat, raw: Tensor) -> Tensor:
    """The values of `raw [n, row_bytes]` uint8, rows of a tensor: `[n, in]` of its type, float32 for blocks."""
    if block.name in _DTYPES:
        return raw.view(_DTYPES[block.name])
    if block.by_library:
        return _decode_by_library(block, raw)
    if block.name == "MXFP4":
        return _decode_mxfp4(raw.unflatten(1, (-1, block.num_bytes)))
    return take_apart(block, raw).decode()


def check_library(tensor: str, block: BlockFormat) -> None:
    """Raises ModelLoadError: the library that decodes this tensor is not installed."""
    if block.by_library and find_spec("gguf") is None:
        raise ModelLoadError(
            f"tensor {tensor} has the format {block.name}, which the gguf library decodes: pip install 'lullm[gguf]', "
            "or take the model's Q4_K_M or IQ4_XS file"
        )


def _decode_by_library(block: BlockFormat, raw: Tensor) -> Tensor:
    from gguf import GGMLQuantizationType, dequantize  # optional, and a tenth of a second to import

    return torch.from_numpy(dequantize(raw.contiguous().numpy(), GGMLQuantizationType[block.name]))


_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _halves(raw: Tensor) -> Tensor:  # [n, S, 2] -> float16 [n, S]
    return raw.contiguous().view(torch.float16).squeeze(-1)


def _nibbles(raw: Tensor, run: int) -> Tensor:
    """The digits of each run of `run` bytes, first the low ones, then the high ones: `[n, S, b] -> [n, S, 2 b]`."""
    runs = raw.unflatten(2, (-1, 1, run))
    return torch.cat((runs & 15, runs >> 4), dim=3).flatten(2)


def _q8_0(raw: Tensor) -> GridRows:  # float16, 32 int8
    return GridRows(raw[..., 2:].view(torch.int8).flatten(1), _halves(raw[..., :2]))


def _q4_0(raw: Tensor) -> GridRows:  # float16, 32 digits + 8
    return GridRows((_nibbles(raw[..., 2:], 16).view(torch.int8) - 8).flatten(1), _halves(raw[..., :2]))


def _q5_0(raw: Tensor) -> GridRows:  # float16, 32 fifth bits, 32 digits + 16
    return GridRows((_five_bits(raw[..., 2:]).view(torch.int8) - 16).flatten(1), _halves(raw[..., :2]))


def _five_bits(raw: Tensor) -> Tensor:  # [n, S, 4 + 16] -> uint8 [n, S, 32]
    fifth = torch.stack([raw[..., :4] >> bit & 1 for bit in range(8)], dim=-1).flatten(2)
    return _nibbles(raw[..., 4:], 16) | fifth << 4


def _q4_1(raw: Tensor) -> GridRows:  # two float16: a factor and what is added, 32 digits
    return _with_minimum(raw, _nibbles(raw[..., 4:], 16))


def _q5_1(raw: Tensor) -> GridRows:
    return _with_minimum(raw, _five_bits(raw[..., 4:]))


def _with_minimum(raw: Tensor, digits: Tensor) -> GridRows:
    return GridRows(digits.flatten(1), _halves(raw[..., :2]), min_factors=-_halves(raw[..., 2:4]))


def _iq4_nl(raw: Tensor) -> GridRows:  # float16, 32 numbers of a table
    return GridRows(_of_table(_nibbles(raw[..., 2:], 16)), _halves(raw[..., :2]))


def _iq4_xs(raw: Tensor) -> GridRows:  # float16, two high bits of 8 codes, four low bits of them, 256 of the table
    high = torch.cat([raw[..., 2 + byte : 3 + byte] >> shift & 3 for byte in (0, 1) for shift in (0, 2, 4, 6)], dim=-1)
    low = torch.stack((raw[..., 4:8] & 15, raw[..., 4:8] >> 4), dim=-1).flatten(2)
    codes = (low | high << 4).view(torch.int8) - 32
    return GridRows(_of_table(_nibbles(raw[..., 8:], 16)), _halves(raw[..., :2]), codes.flatten(1))


_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of the digits of IQ4_NL and IQ4_XS."""


def _of_table(digits: Tensor) -> Tensor:
    return torch.tensor(_LEVELS, dtype=torch.int8, device=digits.device)[digits.int()].flatten(1)


def _two_bits(raw: Tensor) -> Tensor:
    """The pairs of bits of each 32 bytes, the lowest pairs first: `[n, S, 64] -> [n, S, 256]`."""
    halves = raw.unflatten(2, (2, 1, 32))
    return torch.cat([halves >> shift & 3 for shift in (0, 2, 4, 6)], dim=3).flatten(2)


def _q2_k(raw: Tensor) -> GridRows:  # 16 codes of scales and of minimums, 256 x 2 bits, two float16
    codes = raw[..., :16]
    factors, min_factors = _halves(raw[..., 80:82]), _halves(raw[..., 82:84])
    scales = (codes & 15).view(torch.int8).flatten(1)
    return GridRows(_two_bits(raw[..., 16:80]).flatten(1), factors, scales, min_factors, (codes >> 4).flatten(1))


def _q3_k(raw: Tensor) -> GridRows:  # 256 third bits, 256 x 2 bits, 16 codes of 6 bits, float16
    third = torch.stack([raw[..., :32] >> bit & 1 for bit in range(8)], dim=2).flatten(2)
    digits = (_two_bits(raw[..., 32:96]) | third << 2).view(torch.int8) - 4
    low = torch.cat((raw[..., 96:104] & 15, raw[..., 96:104] >> 4), dim=-1)
    high = torch.cat([raw[..., 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1)
    codes = (low | high << 4).view(torch.int8) - 32
    return GridRows(digits.flatten(1), _halves(raw[..., 108:]), codes.flatten(1))


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
    """Eight codes of scales and eight of minimums `[n, S * 8]`, from 12 bytes."""
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
    "Q5_0": _q5_0,
    "Q4_1": _q4_1,
    "Q5_1": _q5_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
}


def narrow_blocks(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Digits `[n, G, 16]`, two neighbours a byte, and exponents `[n, G]`, of `raw [n, row_bytes]` uint8: rows of a
    tensor of MXFP4.
    """
    blocks = raw.unflatten(1, (-1, 17))
    digits = torch.cat((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), dim=-1)  # a block's first half is in the low bits
    return digits[..., ::2] | digits[..., 1::2] << 4, blocks[..., 0]


_HALVED = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Twice the magnitudes of e2m1; the scale is 2 to the power of its bits - 128 instead of - 127."""


def _decode_mxfp4(raw: Tensor) -> Tensor:  # a byte of a scale, 32 digits
    table = torch.tensor([*_HALVED, *(-value for value in _HALVED)], dtype=torch.float32, device=raw.device)
    digits = _nibbles(raw[..., 1:], 16)
    exponents = raw[..., :1].int() - 128
    return torch.ldexp(table[digits.int()], exponents).flatten(1)
