"""Staging: all integers of a step in one buffer, which goes to the device in one copy.

The buffer exists once on the device, and on the host once for each step in flight: one step may be prepared while the
copy of the step before it is on its way. The device of a CPU is the host: its buffer is one more piece of host memory.

A batch of decodes stands at the same addresses every time (`StageParts`), where a recording reads it. An accelerator
fills it up to one of few sizes, a CPU takes every size as it comes: `decode_sizes` says which there are.

A recording reads block tables with rows of the full width: 10 KB each at 40,960 tokens, of which a batch of short
contexts uses a few bytes. So they are sent as narrow as the batch needs, and are spread on the device over tables of
full rows that stay there. Entries that are not sent keep old ids, which are never followed: they lie beyond their row's
context.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from lullm.device.device import Device
from lullm.ops.device_layout import DeviceLayout, new_semaphores
from lullm.ops.draw_table import DrawTable
from lullm.ops.table import Ops
from lullm.step.batch import Batch
from lullm.step.limits import StepLimits
from lullm.step.stage_parts import StageParts, StageShape, cut_arrays, cut_tensors, stage_bytes
from lullm.units import cdiv


@dataclass(frozen=True, slots=True)
class FilledStage:
    """A step in a buffer of the host, and the bounds of its layout."""

    shape: StageShape
    buffer: Tensor  # uint8
    max_query_len: int
    max_context_len: int
    prefill_lens: Sequence[int]


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step on the device, valid until the next one is uploaded."""

    shape: StageShape
    parts: StageParts[Tensor]
    layouts: Sequence[DeviceLayout]  # by KV cache group


class Staging:
    """Fills the buffers on the host and copies them to the device.

    Args:
        ops: say which integers they read.
        decode_sizes: the sizes of batches of decodes, ascending; the largest is `max_num_seqs`.
        vocab_size: V.
    """

    def __init__(self, device: Device, ops: Ops, limits: StepLimits, decode_sizes: Sequence[int], vocab_size: int):
        self._limits = limits
        self._index_dtype = ops.index_dtype
        self._decode_sizes = decode_sizes
        self._vocab_size = vocab_size
        num_seqs, num_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        self._max_width = cdiv(limits.max_model_len, limits.block_size)
        num_draws = max(num_seqs, num_tokens)
        self._num_groups = len(limits.windows)
        largest = StageShape(
            num_tokens, num_seqs, self._max_width, num_draws, num_draws, num_draws, num_tokens, self._num_groups
        )
        num_bytes = stage_bytes(largest, self._index_dtype)
        self._host = [device.staging((num_bytes,), torch.uint8) for _ in range(limits.max_in_flight)]
        self._arrays = [buffer.numpy() for buffer in self._host]
        self._turn = 0
        place = device.torch_device
        self._device = torch.zeros(num_bytes, dtype=torch.uint8, device=place)
        full = (self._num_groups, num_seqs, self._max_width)
        self._full_tables = torch.zeros(full, dtype=self._index_dtype, device=place)  # [G, S, M]
        self._semaphores = new_semaphores(num_seqs, ops.semaphores_per_span, place)
        # Of batches of decodes, by their size: all parts but the block tables, which begin where the parts end.
        self._decode_arrays: list[dict[int, StageParts[np.ndarray]]] = [{} for _ in self._host]
        self._decode_tensors: dict[int, StageParts[Tensor]] = {}
        self._decode_bytes: dict[int, int] = {}

    def fill(self, batch: Batch, sources: np.ndarray | None, uniforms: np.ndarray | None) -> FilledStage:
        """Write a batch into the next buffer of the host. Host only.

        Args:
            sources: [T], see `TokenFeedback`; None: no token is pending.
            uniforms: [N]; None: all draws are greedy.
        """
        self._turn = (self._turn + 1) % len(self._host)
        layout = batch.layout
        shape = self._shape_of(batch)
        parts, tables, num_bytes = self._host_parts(shape)
        num_spans, width = layout.block_tables.shape
        for table, group in zip(tables, batch.layouts, strict=True):
            table[:num_spans, :width] = group.block_tables.numpy()
        _write(parts, batch, sources)
        _write_draws(parts, DrawTable.of(batch.draws, uniforms, self._vocab_size), all_greedy=uniforms is None)
        prefill_lens = () if shape.is_decode else [query_len for query_len in layout.query_lens if query_len > 1]
        buffer = self._host[self._turn][:num_bytes]
        return FilledStage(shape, buffer, max(layout.query_lens), max(layout.context_lens), prefill_lens)

    def upload(self, filled: FilledStage) -> None:
        """Enqueue the copy to the device."""
        self._device[: len(filled.buffer)].copy_(filled.buffer, non_blocking=True)
        shape = filled.shape
        if shape.is_decode:
            sent = self._device[self._decode_bytes[shape.num_spans] : len(filled.buffer)].view(self._index_dtype)
            sent = sent.view(shape.num_groups, shape.num_spans, shape.width)
            self._full_tables[:, : shape.num_spans, : shape.width].copy_(sent)

    def step(self, filled: FilledStage) -> StagedStep:
        """What stands on the device once it is uploaded."""
        if filled.shape.is_decode:
            return self.decode_step(filled.shape.num_spans)
        parts = cut_tensors(self._device, filled.shape, self._index_dtype)
        bounds = filled.max_query_len, filled.max_context_len, filled.prefill_lens
        return StagedStep(filled.shape, parts, self._layouts(parts, parts.block_tables, *bounds))

    def decode_step(self, size: int) -> StagedStep:
        """The place of a batch of decodes of `size` spans: the same memory every time."""
        shape, parts = self._decode_shape(size, self._max_width), self._decode_parts(size)
        tables = self._full_tables[:, :size]
        return StagedStep(shape, parts, self._layouts(parts, tables, 1, self._limits.max_model_len))

    def token_ids(self, filled: FilledStage) -> tuple[Tensor, Tensor]:
        """[T] int64 each, on the device: the token ids, and the sources of those that are pending."""
        parts = self._decode_parts(filled.shape.num_spans) if filled.shape.is_decode else self.step(filled).parts
        return parts.token_ids, parts.sources

    def clear(self, size: int) -> None:
        """Stage a batch of decodes of `size` rows that all only fill up: computing it writes nothing."""
        self._device.zero_()
        self._full_tables.zero_()
        parts = self._decode_parts(size)
        parts.slot_mapping.fill_(-1)
        parts.query_starts.copy_(torch.arange(size + 1))

    def _shape_of(self, batch: Batch) -> StageShape:
        num_tokens, (num_spans, width) = batch.layout.num_tokens, batch.layout.block_tables.shape
        if batch.is_decode:
            size = self._decode_sizes[bisect_left(self._decode_sizes, num_spans)]
            return self._decode_shape(size, width)
        num_draws = len(batch.draws)
        num_indexed = 0 if batch.draw_index is None else num_draws
        sources = self._num_sources(num_tokens)
        num_rows, groups = len(batch.drawn_rows), self._num_groups
        return StageShape(num_tokens, num_spans, width, num_rows, num_draws, num_indexed, sources, groups)

    def _decode_shape(self, size: int, width: int) -> StageShape:
        sources, groups = self._num_sources(size), self._num_groups
        return StageShape(size, size, width, 0, size, num_sources=sources, num_groups=groups, is_decode=True)

    def _num_sources(self, num_tokens: int) -> int:
        return num_tokens if self._limits.max_in_flight > 1 else 0

    def _host_parts(self, shape: StageShape) -> tuple[StageParts[np.ndarray], np.ndarray, int]:
        """Of the buffer whose turn it is: the parts, the block tables, and the bytes of all."""
        array = self._arrays[self._turn]
        if not shape.is_decode:
            parts = cut_arrays(array, shape, self._index_dtype)
            return parts, parts.block_tables, stage_bytes(shape, self._index_dtype)
        size, known = shape.num_spans, self._decode_arrays[self._turn]
        if size not in known:
            known[size] = cut_arrays(array, self._decode_shape(size, 0), self._index_dtype)
            self._decode_bytes[size] = stage_bytes(self._decode_shape(size, 0), self._index_dtype)
        parts, start = known[size], self._decode_bytes[size]
        dims = shape.num_groups, size, shape.width
        end = start + prod(dims) * self._index_dtype.itemsize
        return parts, array[start:end].view(parts.block_tables.dtype).reshape(dims), end

    def _decode_parts(self, size: int) -> StageParts[Tensor]:
        """On the device."""
        if size not in self._decode_tensors:
            shape = self._decode_shape(size, 0)
            self._decode_tensors[size] = cut_tensors(self._device, shape, self._index_dtype)
        return self._decode_tensors[size]

    def _layouts(
        self,
        parts: StageParts[Tensor],
        block_tables: Tensor,
        max_query_len: int,
        max_context_len: int,
        prefill_lens: Sequence[int] = (),
    ) -> Sequence[DeviceLayout]:
        return [
            DeviceLayout(
                query_starts=parts.query_starts,
                context_lens=parts.context_lens,
                block_tables=table,
                slot_mapping=slots,
                semaphores=self._semaphores,
                block_size=self._limits.block_size,
                max_query_len=max_query_len,
                max_context_len=max_context_len,
                num_prefill_tokens=sum(prefill_lens),
                num_prefill_spans=len(prefill_lens),
                window=window,
            )
            for table, slots, window in zip(block_tables, parts.slot_mapping, self._limits.windows, strict=True)
        ]


def _write(parts: StageParts[np.ndarray], batch: Batch, sources: np.ndarray | None) -> None:
    """All but the block tables and the draws."""
    layout = batch.layout
    num_spans, num_padded = layout.num_spans, len(parts.context_lens) - layout.num_spans
    _copy(parts.token_ids, batch.token_ids.numpy(), padding=0)
    _copy(parts.positions, batch.positions.numpy(), padding=0)
    num_tokens = layout.num_tokens
    parts.slot_mapping[:, :num_tokens] = batch.slot_mapping.numpy()
    parts.slot_mapping[:, num_tokens:] = -1
    _copy(parts.context_lens, layout.context_lens, padding=0)
    if len(parts.token_ids) == len(parts.context_lens):  # spans of one token each
        parts.query_starts[:] = np.arange(num_spans + num_padded + 1)
    else:
        parts.query_starts[0] = 0
        np.cumsum(layout.query_lens, out=parts.query_starts[1:])
    if len(parts.drawn_rows):
        parts.drawn_rows[:] = batch.drawn_rows.numpy()
    if batch.draw_index is not None:
        parts.draw_index[:] = batch.draw_index.numpy()
    if sources is not None:
        _copy(parts.sources, sources, padding=-1)


def _write_draws(parts: StageParts[np.ndarray], table: DrawTable, all_greedy: bool) -> None:
    """Of a greedy row nothing but the temperature counts."""
    _copy(parts.temperatures, table.temperatures.numpy(), padding=0.0)
    if all_greedy:
        return
    _copy(parts.top_k, table.top_k.numpy(), padding=1)
    _copy(parts.top_p, table.top_p.numpy(), padding=1.0)
    _copy(parts.min_p_floors, table.min_p_floors.numpy(), padding=-np.inf)
    _copy(parts.uniforms, table.uniforms.numpy(), padding=0.5)


def _copy(part: np.ndarray, values: Sequence[int] | np.ndarray, padding: float) -> None:
    num_values = len(values)
    part[:num_values] = values
    if num_values < len(part):
        part[num_values:] = padding
