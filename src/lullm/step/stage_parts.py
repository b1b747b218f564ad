"""The parts of a staged step: the places of its numbers in one buffer.

The place of a part depends only on the step's sizes. So the parts of a batch of decodes are at the same addresses every
time, as a recorded graph needs. The block tables come last, because only their width changes between batches of decodes
of one size.
"""

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lullm.units import round_up

Array = TypeVar("Array", Tensor, np.ndarray)

_ALIGNMENT = 16
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64}


@dataclass(frozen=True, slots=True)
class StageShape:
    """Sizes of a staged step.

    Args:
        width: block ids per span.
        num_rows: listed rows with draws. A batch of decodes lists none, since all rows draw.
        num_indexed: draws that name their row; 0: draw i has row i.
        num_sources: `num_tokens` in an engine whose tokens may be pending, otherwise 0.
        num_groups: KV cache groups of the model.
        num_adapted: `num_tokens` in an engine with adapters, otherwise 0.
        num_segmented: `num_tokens` in a step with pairs whose texts are told apart, otherwise 0.
        num_planed: `num_tokens` in a step that shows pictures with planes of positions, otherwise 0.
        num_encoded: `num_spans` in an engine with an encoder, otherwise 0.
        is_decode: one token and one draw per span, the batch padded to `num_spans`.
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
    num_adapted: int = 0
    num_planed: int = 0
    num_encoded: int = 0
    num_segmented: int = 0


@dataclass(frozen=True, slots=True)
class StageParts(Generic[Array]):
    """The parts of one buffer: arrays on the host, or tensors on the device. I: `Ops.index_dtype`."""

    token_ids: Array  # [T] int64
    positions: Array  # [T] int64
    slot_mapping: Array  # [G, T] int64, -1: written nowhere
    sources: Array  # [F] int64, see `TokenFeedback`
    adapters: Array  # [A] int64, see `Batch`
    planes: Array  # [3, P] int64, see `Batch`
    segments: Array  # [E] int64, see `Batch`
    wanted_rows: Array  # [R] int64, see `Batch`
    draw_index: Array  # [X] int64
    top_p: Array  # [N] float64
    keys: Array  # [N] int64
    temperatures: Array  # [N] float32
    min_p_floors: Array  # [N] float32
    top_k: Array  # [N] int32
    query_starts: Array  # [S + 1] I
    context_lens: Array  # [S] I, 0: a padding row
    encoder_lens: Array  # [E] I, see `Batch`; 0: a padding row
    block_tables: Array  # [G, S, M] I


class StageBuffer(Generic[Array]):
    """A flat buffer of bytes that is cut into parts: an array on the host, a tensor on the device."""

    def __init__(self, views: dict[torch.dtype, Array], index_dtype: torch.dtype):
        self._views: dict[torch.dtype, Any] = views
        self._index_dtype = index_dtype

    @staticmethod
    def of_tensor(buffer: Tensor, index_dtype: torch.dtype) -> "StageBuffer[Tensor]":
        """Over a uint8 tensor of `stage_bytes` of the largest shape."""
        return StageBuffer({dtype: buffer.view(dtype) for dtype in _NUMPY}, index_dtype)

    @staticmethod
    def of_array(buffer: np.ndarray, index_dtype: torch.dtype) -> "StageBuffer[np.ndarray]":
        """Over a uint8 array of that size."""
        return StageBuffer({dtype: buffer.view(_NUMPY[dtype]) for dtype in _NUMPY}, index_dtype)

    def cut(self, shape: StageShape) -> StageParts[Array]:
        """The parts of a step of this shape."""
        parts, start = {}, 0
        for name, (sizes, dtype) in _sections(shape, self._index_dtype).items():
            count, item_bytes = math.prod(sizes), dtype.itemsize
            first = start // item_bytes
            part = self._views[dtype][first : first + count]
            parts[name] = part if len(sizes) == 1 else part.reshape(sizes)
            start = round_up(start + count * item_bytes, _ALIGNMENT)
        return StageParts(**parts)


def stage_bytes(shape: StageShape, index_dtype: torch.dtype) -> int:
    """Bytes of the buffer of a step of this shape."""
    sections = _sections(shape, index_dtype).values()
    return sum(round_up(math.prod(sizes) * dtype.itemsize, _ALIGNMENT) for sizes, dtype in sections)


def _sections(shape: StageShape, index_dtype: torch.dtype) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Sizes and type of each of `StageParts`, in the order of the buffer."""
    tokens, draws, spans, groups = shape.num_tokens, shape.num_draws, shape.num_spans, shape.num_groups
    return {
        "token_ids": ((tokens,), torch.int64),
        "positions": ((tokens,), torch.int64),
        "slot_mapping": ((groups, tokens), torch.int64),
        "sources": ((shape.num_sources,), torch.int64),
        "adapters": ((shape.num_adapted,), torch.int64),
        "planes": ((3, shape.num_planed), torch.int64),
        "segments": ((shape.num_segmented,), torch.int64),
        "wanted_rows": ((shape.num_rows,), torch.int64),
        "draw_index": ((shape.num_indexed,), torch.int64),
        "top_p": ((draws,), torch.float64),
        "keys": ((draws,), torch.int64),
        "temperatures": ((draws,), torch.float32),
        "min_p_floors": ((draws,), torch.float32),
        "top_k": ((draws,), torch.int32),
        "query_starts": ((spans + 1,), index_dtype),
        "context_lens": ((spans,), index_dtype),
        "encoder_lens": ((shape.num_encoded,), index_dtype),
        "block_tables": ((groups, spans, shape.width), index_dtype),
    }
