"""LookupTensor: a matrix of bitsandbytes: 4-bit indices into a table and scales of runs; or int8 by rows."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.units import cdiv
from lullm.weights.encoding.encoded import RowRange
from lullm.weights.encoding.integer import check

_STATES = (".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4")
_SCALES, _TABLE = ".weight.absmax", ".weight.quant_map"
_OUTER_SCALES, _OUTER_TABLE = ".weight.nested_absmax", ".weight.nested_quant_map"
ROW_SCALES, _ROW_LAYOUT = ".SCB", ".weight_format"
SUFFIXES = (*_STATES, _SCALES, _TABLE, _OUTER_SCALES, _OUTER_TABLE, ROW_SCALES, _ROW_LAYOUT)
_LARGEST_BYTE = 127
_MOST_STATE_BYTES = 1 << 16
_LONGEST_RUN = 1 << 16
"""Longest run, whose scale is repeated as often: the library's longest is 4096."""


@dataclass(frozen=True, eq=False)
class LookupTensor(RowRange):
    """A matrix `[out, in]`: the table's number x the scale of its run, in float32. No native format has a table.

    Runs cross rows: the weights lie row after row.

    Args:
        codes: uint8, two a byte, the first in the high bits. scales: float32, of each run of `run_size`.
    """

    codes: Tensor
    table: Tensor
    scales: Tensor
    run_size: int

    def decode(self) -> Tensor:
        start, end = self.first * self.num_inputs, self.last * self.num_inputs
        run, end_run = start // self.run_size, cdiv(end, self.run_size)
        codes = self.codes[run * self.run_size // 2 : cdiv(min(end_run * self.run_size, 2 * len(self.codes)), 2)]
        values = self.table[torch.stack((codes >> 4, codes & 15), dim=1).flatten().int()]
        scales = self.scales[run:end_run].repeat_interleave(self.run_size)[: len(values)]
        offset = start - run * self.run_size
        return (values * scales)[offset : offset + end - start].view(self.shape)


def encode_lookup(name: str, parts: Mapping[str, Tensor]) -> LookupTensor:
    """The matrix of these parts. Raises ModelLoadError: a part is missing, or they do not fit together."""
    for suffix in (".weight", _SCALES, _TABLE):
        check(name, suffix in parts, f"missing tensor {name.removesuffix('.weight')}{suffix}")
    stated = [suffix for suffix in _STATES if suffix in parts]
    check(name, len(stated) == 1, f"it needs one tensor {name}.quant_state.bitsandbytes__nf4, or one of fp4")
    state = _state(name, parts[stated[0]])
    shape, run_size = state.get("shape", 0), state.get("blocksize", 0)
    is_shape = isinstance(shape, list) and len(shape) == 2 and all(_is_size(each) for each in shape)
    check(
        name,
        is_shape and _is_size(run_size, _LONGEST_RUN) and run_size % 2 == 0,
        "its state says no shape and blocksize",
    )
    num_values = math.prod(shape)
    codes = parts[".weight"].contiguous().view(torch.uint8).flatten()  # the bytes may be stored as another type
    check(name, len(codes) == cdiv(num_values, 2), f"{len(codes)} bytes do not hold a matrix {shape}")
    table, scales = parts[_TABLE].float(), _scales(name, parts, state)
    fits = table.shape == (16,) and scales.shape == (cdiv(num_values, run_size),)
    is_finite = bool(table.isfinite().all() & scales.isfinite().all())
    check(name, fits and is_finite, f"its table {list(table.shape)} and scales {list(scales.shape)} do not fit {shape}")
    return LookupTensor(0, shape[0], shape[1], codes, table, scales, run_size)


def _scales(name: str, parts: Mapping[str, Tensor], state: dict[str, Any]) -> Tensor:
    """The scales of runs. Scales of one byte are indices into a table, too, with their own scales and one offset."""
    stored = parts[_SCALES]
    if stored.is_floating_point():
        return stored.float().flatten()
    for suffix in (_OUTER_SCALES, _OUTER_TABLE):
        check(name, suffix in parts, f"missing tensor {name.removesuffix('.weight')}{suffix}")
    size, added = state.get("nested_blocksize", 0), state.get("nested_offset", "")
    check(
        name,
        _is_size(size, _LONGEST_RUN) and isinstance(added, float | int),
        "its state says no nested_blocksize and offset",
    )
    outer, table = parts[_OUTER_SCALES].float().flatten(), parts[_OUTER_TABLE].float()
    fits = stored.dtype == torch.uint8 and table.shape == (256,) and len(outer) == cdiv(stored.numel(), size)
    check(name, fits, f"its scales of scales {list(outer.shape)} do not fit {list(stored.shape)}")
    return table[stored.flatten().int()] * outer.repeat_interleave(size)[: stored.numel()] + added


def _state(name: str, stored: Tensor) -> dict[str, Any]:
    check(name, stored.dtype == torch.uint8 and stored.numel() < _MOST_STATE_BYTES, "its state is no text")
    try:
        state = json.loads(bytes(stored.flatten().tolist()))
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{name}: its state is no JSON: {error}; fetch the checkpoint again") from None
    check(name, isinstance(state, dict), "its state is no object")
    return dict(state)


def _is_size(value: object, most: int = 1 << 40) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most


def with_row_scales(name: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts of a matrix of bytes; its scales are the largest magnitudes of rows. Raises ModelLoadError."""
    layout = parts.get(_ROW_LAYOUT)
    check(name, layout is None or not layout.any(), "its bytes are not in the order of rows (weight_format)")
    return {**parts, ".weight_scale": parts[ROW_SCALES].float() / _LARGEST_BYTE}
