"""Staging: all integers of a step in one buffer, which goes to an accelerator in one copy.

The buffer exists twice on the host, since one step may be prepared while the copy of the one before it is on its way,
and once on the device. Where the parts lie in it follows from the sizes of the step alone. A batch of decodes is filled
up to one of few sizes: its parts then lie at the same addresses every time, which is what a recorded graph needs.

Its block tables are what a graph reads with rows of the full width: 10 KB each at 40,960 tokens, of which a batch of
short contexts uses a few bytes. So they come last in the buffer, as narrow as the batch needs, and are spread on the
device over tables of full rows that stay there. Entries that are not sent keep old ids, which nobody follows: they lie
beyond their row's context.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from lullm.device.device import Device
from lullm.ops.draw_table import DrawTable
from lullm.ops.triton.layout import DeviceLayout, new_semaphores
from lullm.step.batch import Batch
from lullm.units import cdiv, round_up

_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class StageShape:
    """Sizes of a staged step. `is_decode`: one token and one draw per span, the batch filled up to `num_spans`.

    `width`: block ids per span.
    """

    num_tokens: int
    num_spans: int
    width: int
    num_rows: int
    num_draws: int
    is_decode: bool = False


@dataclass(frozen=True, slots=True)
class StageParts:
    """The parts of one buffer, as tensors over it. See `TokenFeedback` for the sources, `DrawTable` for the draws."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64, -1: written nowhere
    sources: Tensor  # [T] int64
    drawn_rows: Tensor  # [R] int64
    draw_index: Tensor  # [N] int64
    top_p: Tensor  # [N] float64
    uniforms: Tensor  # [N] float64
    temperatures: Tensor  # [N] float32
    min_p_floors: Tensor  # [N] float32
    top_k: Tensor  # [N] int32
    query_starts: Tensor  # [S + 1] int32
    context_lens: Tensor  # [S] int32, 0: a row that fills up
    block_tables: Tensor  # [S, M] int32

    def draw_table(self, num_draws: int) -> DrawTable:
        """Of the first draws."""
        columns = (self.temperatures, self.top_k, self.top_p, self.min_p_floors, self.uniforms)
        return DrawTable(*(column[:num_draws] for column in columns))


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A step on the device. `parts` are valid until the next one is uploaded."""

    shape: StageShape
    parts: StageParts
    layout: DeviceLayout


class Staging:
    """Fills the buffers on the host and copies them to the device.

    Args:
        max_num_seqs, max_num_batched_tokens, max_model_len, block_size, window: see `BatchBuilder`.
        decode_sizes: the sizes that batches of decodes are filled up to, ascending; the largest is `max_num_seqs`.
        vocab_size: V.
    """

    def __init__(
        self,
        device: Device,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int,
        window: int | None,
        decode_sizes: Sequence[int],
        vocab_size: int,
    ):
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._window = window
        self._vocab_size = vocab_size
        self._decode_sizes = list(decode_sizes)
        self._max_width = cdiv(max_model_len, block_size)
        largest = StageShape(max_num_batched_tokens, max_num_seqs, self._max_width, max_num_seqs, max_num_seqs)
        num_bytes = stage_bytes(largest)
        self._host = [device.staging((num_bytes,), torch.uint8) for _ in range(2)]
        self._device = torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device)
        self._full_tables = torch.zeros(
            (max_num_seqs, self._max_width), dtype=torch.int32, device=device.torch_device
        )  # [max_num_seqs, M]
        self._semaphores = new_semaphores(max_num_seqs, device.torch_device)
        self._turn = 0
        self._decode_parts: dict[tuple[int, int], StageParts] = {}

    def decode_size(self, batch: Batch) -> int | None:
        """What a batch of decodes is filled up to; None: it is something else."""
        if not batch.is_decode:
            return None
        return next(size for size in self._decode_sizes if size >= batch.layout.num_spans)

    def fill(self, batch: Batch, sources: np.ndarray | None, uniforms: np.ndarray | None) -> tuple[StageShape, Tensor]:
        """Write a batch into a buffer of the host; the next but one call reuses it. Host only."""
        size = self.decode_size(batch)
        num_rows, num_draws = len(batch.drawn_rows), len(batch.draws)
        num_spans, width = batch.layout.block_tables.shape
        if size is not None:
            shape = StageShape(size, size, width, size, size, is_decode=True)
        else:
            shape = StageShape(batch.layout.num_tokens, num_spans, width, num_rows, num_draws)
        self._turn = 1 - self._turn
        buffer = self._host[self._turn]
        parts = self._parts(buffer, self._turn, shape)
        _write(parts, batch, sources)
        table = DrawTable.of(batch.draws, uniforms, self._vocab_size)
        _write_draws(parts, table, all_greedy=uniforms is None)
        return shape, buffer[: stage_bytes(shape)]

    def upload(self, shape: StageShape, buffer: Tensor, layout_source: Batch) -> StagedBatch:
        """Enqueue the copy to the device; what stands there afterwards."""
        self._device[: len(buffer)].copy_(buffer, non_blocking=True)
        if shape.is_decode:
            sent = self._parts(self._device, -1, shape).block_tables
            self._full_tables[: shape.num_spans, : shape.width].copy_(sent)
            return self.decode_batch(shape.num_spans)
        layout = layout_source.layout
        parts = cut(self._device, shape)
        prefills = [query_len for query_len in layout.query_lens if query_len > 1]
        return self._staged(shape, parts, max(layout.query_lens), max(layout.context_lens), prefills)

    def decode_batch(self, size: int) -> StagedBatch:
        """The place of a batch of decodes that is filled up to `size`: the same tensors every time."""
        shape = StageShape(size, size, self._max_width, size, size, is_decode=True)
        parts = replace(self._parts(self._device, -1, shape), block_tables=self._full_tables[:size])
        return self._staged(shape, parts, 1, self._max_model_len)

    def clear(self, size: int) -> None:
        """Stage a batch of decodes of `size` rows that all only fill up: computing it writes nothing."""
        self._device.zero_()
        self._full_tables.zero_()
        parts = self.decode_batch(size).parts
        parts.slot_mapping.fill_(-1)
        parts.sources.fill_(-1)
        parts.query_starts.copy_(torch.arange(size + 1))

    def _staged(
        self,
        shape: StageShape,
        parts: StageParts,
        max_query_len: int,
        max_context_len: int,
        prefills: Sequence[int] = (),
    ) -> StagedBatch:
        layout = DeviceLayout(
            query_starts=parts.query_starts,
            context_lens=parts.context_lens,
            block_tables=parts.block_tables,
            slot_mapping=parts.slot_mapping,
            semaphores=self._semaphores,
            block_size=self._block_size,
            max_query_len=max_query_len,
            max_context_len=max_context_len,
            num_prefill_tokens=sum(prefills),
            num_prefill_spans=len(prefills),
            window=self._window,
        )
        return StagedBatch(shape, parts, layout)

    def _parts(self, buffer: Tensor, buffer_id: int, shape: StageShape) -> StageParts:
        if not shape.is_decode:
            return cut(buffer, shape)
        key = buffer_id, shape.num_spans
        if key not in self._decode_parts:  # all but the block tables, which change their width and stand last
            self._decode_parts[key] = cut(buffer, replace(shape, width=0))
        start, end = stage_bytes(replace(shape, width=0)), stage_bytes(shape)
        tables = buffer[start:end].view(torch.int32)[: shape.num_spans * shape.width].view(shape.num_spans, shape.width)
        return replace(self._decode_parts[key], block_tables=tables)


def _write(parts: StageParts, batch: Batch, sources: np.ndarray | None) -> None:
    layout = batch.layout
    num_tokens, num_spans, width = layout.num_tokens, layout.num_spans, layout.block_tables.shape[1]
    _copy(parts.token_ids, batch.token_ids, padding=0)
    _copy(parts.positions, batch.positions, padding=0)
    _copy(parts.slot_mapping, layout.slot_mapping, padding=-1)
    _copy(parts.context_lens, torch.tensor(layout.context_lens), padding=0)
    parts.block_tables[:num_spans, :width].copy_(layout.block_tables)
    parts.query_starts[: num_spans + 1].copy_(torch.tensor([0, *layout.query_lens]).cumsum(0))
    num_padded = len(parts.context_lens) - num_spans  # rows of one token each
    if num_padded:
        parts.query_starts[num_spans + 1 :].copy_(torch.arange(num_tokens + 1, num_tokens + 1 + num_padded))
    _copy(parts.drawn_rows, batch.drawn_rows, padding=0)
    if batch.draw_index is not None:
        parts.draw_index.copy_(batch.draw_index)
    if sources is None:
        parts.sources.fill_(-1)
    else:
        _copy(parts.sources, torch.from_numpy(sources), padding=-1)


def _write_draws(parts: StageParts, table: DrawTable, all_greedy: bool) -> None:
    """Of a greedy row nothing but the temperature counts."""
    _copy(parts.temperatures, table.temperatures, padding=0.0)
    if all_greedy:
        return
    _copy(parts.top_k, table.top_k, padding=1)
    _copy(parts.top_p, table.top_p, padding=1.0)
    _copy(parts.min_p_floors, table.min_p_floors, padding=-np.inf)
    _copy(parts.uniforms, table.uniforms, padding=0.5)


def _copy(part: Tensor, values: Tensor, padding: float) -> None:
    part[: len(values)].copy_(values)
    part[len(values) :].fill_(padding)


def stage_bytes(shape: StageShape) -> int:
    """Of the buffer that a step of this shape takes."""
    return sum(round_up(prod(dims) * dtype.itemsize, _ALIGNMENT) for dims, dtype in _sections(shape))


def cut(buffer: Tensor, shape: StageShape) -> StageParts:
    """The parts of a flat uint8 buffer."""
    parts, offset = [], 0
    for dims, dtype in _sections(shape):
        num_bytes = prod(dims) * dtype.itemsize
        parts.append(buffer[offset : offset + num_bytes].view(dtype).view(dims))
        offset += round_up(num_bytes, _ALIGNMENT)
    return StageParts(*parts)


def _sections(shape: StageShape) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Dimensions and type of each part, in the order of `StageParts`."""
    tokens, rows, draws, spans = (shape.num_tokens,), (shape.num_rows,), (shape.num_draws,), (shape.num_spans,)
    return [
        *((dims, torch.int64) for dims in (tokens, tokens, tokens, tokens, rows, draws)),
        *((draws, dtype) for dtype in (torch.float64, torch.float64, torch.float32, torch.float32, torch.int32)),
        ((shape.num_spans + 1,), torch.int32),
        (spans, torch.int32),
        ((shape.num_spans, shape.width), torch.int32),
    ]
