"""The parts of a staged step: the places of its numbers in one buffer.

The place of a part is a function of the step's sizes. So the parts of a batch of decodes are at the same addresses
every time, as a recorded graph needs. The block tables come last, because only their width changes between batches of
decodes of one size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lullm.units import round_up

Array = TypeVar("Array", Tensor, np.ndarray)

_ALIGNMENT = 16
_NUMPY = {
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


@dataclass(frozen=True, slots=True)
class StageShape:
    """Sizes of a staged step.

    Args:
        width: block ids per span.
        num_rows: listed rows whose logits are drawn from. A batch of decodes lists none: it draws from all.
        num_indexed: draws that name their row; 0: draw i has row i.
        num_sources: `num_tokens` in an engine whose tokens may be pending, else 0.
        num_groups: KV cache groups of the model.
        is_decode: one token and one draw per span, the batch filled up to `num_spans`.
    """

    num_tokens: int
    num_spans: int
    width: int
    num_rows: int
    num_draws: int
    num_indexed: int = 0
    num_sources: int = 0
    num_groups: int = 1
    is_decode: bool = False


@dataclass(frozen=True, slots=True)
class StageParts(Generic[Array]):
    """The parts of one buffer: arrays over the host's, or tensors over the device's. I: `Ops.index_dtype`."""

    token_ids: Array  # [T] int64
    positions: Array  # [T] int64
    slot_mapping: Array  # [G, T] int64, -1: written nowhere
    sources: Array  # [P] int64, see `TokenFeedback`
    drawn_rows: Array  # [R] int64
    draw_index: Array  # [X] int64
    top_p: Array  # [N] float64
    uniforms: Array  # [N] float64
    temperatures: Array  # [N] float32
    min_p_floors: Array  # [N] float32
    top_k: Array  # [N] int32
    query_starts: Array  # [S + 1] I
    context_lens: Array  # [S] I, 0: a row that fills up
    block_tables: Array  # [G, S, M] I


def stage_bytes(shape: StageShape, index_dtype: torch.dtype) -> int:
    """Of the buffer that a step of this shape takes."""
    return sum(round_up(prod(dims) * dtype.itemsize, _ALIGNMENT) for dims, dtype in _sections(shape, index_dtype))


def cut_tensors(buffer: Tensor, shape: StageShape, index_dtype: torch.dtype) -> StageParts[Tensor]:
    """The parts of a flat uint8 tensor."""
    sections = _sections(shape, index_dtype)
    # One call cuts all parts and the gaps behind them: 0.3 us for a part instead of 2.
    lens = [length for dims, dtype in sections for length in _with_gap(prod(dims) * dtype.itemsize)]
    pieces = buffer[: sum(lens)].split_with_sizes(lens)[::2]
    parts = [piece.view(dtype) for piece, (_, dtype) in zip(pieces, sections, strict=True)]
    return StageParts(
        *(part.view(dims) if len(dims) > 1 else part for part, (dims, _) in zip(parts, sections, strict=True))
    )


def cut_arrays(buffer: np.ndarray, shape: StageShape, index_dtype: torch.dtype) -> StageParts[np.ndarray]:
    """The same parts of a flat uint8 array."""
    parts, start = [], 0
    for dims, dtype in _sections(shape, index_dtype):
        num_bytes = prod(dims) * dtype.itemsize
        parts.append(buffer[start : start + num_bytes].view(_NUMPY[dtype]).reshape(dims))
        start += round_up(num_bytes, _ALIGNMENT)
    return StageParts(*parts)


def _with_gap(num_bytes: int) -> tuple[int, int]:
    return num_bytes, round_up(num_bytes, _ALIGNMENT) - num_bytes


def _sections(shape: StageShape, index_dtype: torch.dtype) -> Sequence[tuple[tuple[int, ...], torch.dtype]]:
    """Dimensions and type of each part, in the order of `StageParts`."""
    tokens, draws, spans = (shape.num_tokens,), (shape.num_draws,), (shape.num_spans,)
    return (
        (tokens, torch.int64),
        (tokens, torch.int64),
        ((shape.num_groups, shape.num_tokens), torch.int64),
        ((shape.num_sources,), torch.int64),
        ((shape.num_rows,), torch.int64),
        ((shape.num_indexed,), torch.int64),
        (draws, torch.float64),
        (draws, torch.float64),
        (draws, torch.float32),
        (draws, torch.float32),
        (draws, torch.int32),
        ((shape.num_spans + 1,), index_dtype),
        (spans, index_dtype),
        ((shape.num_groups, shape.num_spans, shape.width), index_dtype),
    )
