"""Staging: all integers of a step in one buffer, which is copied to the device at once.

The buffer exists once on the device, and on the host once for each step in flight: one step may be prepared while the
copy of the step before it is under way. With a CPU device the device's buffer is one more piece of host memory.

A batch of decodes is at the same addresses every time (`StageParts`), where a recording reads it. An accelerator pads
it to one of few sizes, a CPU has all sizes: see `decode_sizes`.

A recording reads block tables with rows of the full width: 10 KB each at 40,960 tokens, while a batch of short contexts
uses a few bytes of it. So only the columns that the batch needs are copied. The device spreads them over tables of full
rows at a fixed address. Other entries keep old ids, which no kernel reads, since they lie beyond their row's context.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lullm.device.device import Device
from lullm.ops.device_layout import DeviceLayout, new_semaphores
from lullm.ops.draw_table import DrawTable
from lullm.ops.table import Ops
from lullm.step.batch import Batch
from lullm.step.encoder.layout import by_token
from lullm.step.encoder.split import CROSS_GROUP
from lullm.step.limits import StepLimits
from lullm.step.stage_parts import StageBuffer, StageParts, StageShape, stage_bytes
from lullm.types.draw import Draw, DrawParams


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a step of one shape on the device."""

    target: Tensor  # uint8, the target of the host's buffer
    parts: StageParts[Tensor]  # in it
    full_tables: Tensor  # [G, S, M], block tables of a batch of decodes at full width


@dataclass(slots=True)
class Stage:
    """A step of one shape in a host buffer. `place`: set at its first upload."""

    shape: StageShape
    arrays: StageParts[np.ndarray]
    buffer: Tensor  # uint8, all arrays
    place: _Place | None = None
    params: list[DrawParams] | None = None
    """The parameters of the draws whose columns stand in the buffer; None: it has others."""


@dataclass(frozen=True, slots=True)
class StagedStep:
    """A step on the device, valid until the next one is uploaded."""

    parts: StageParts[Tensor]
    layouts: Sequence[DeviceLayout]  # by KV cache group


class Staging:
    """Fills the buffers on the host and copies them to the device.

    Args:
        ops: they define the type of indices.
        decode_sizes: the sizes of decode batches, ascending; the largest is `max_num_seqs`.
        vocab_size: V.
    """

    def __init__(self, device: Device, ops: Ops, limits: StepLimits, decode_sizes: Sequence[int], vocab_size: int):
        self._limits = limits
        self._index_dtype = ops.index_dtype
        self._decode_sizes = decode_sizes
        self._vocab_size = vocab_size
        self._num_groups = len(limits.windows)
        num_seqs, num_tokens = limits.max_num_seqs, limits.max_num_batched_tokens
        max_width = limits.table_width(limits.max_model_len)
        num_draws = max(num_seqs, num_tokens)
        largest = (num_tokens, num_seqs, max_width, num_draws, num_draws, num_draws, num_tokens, self._num_groups)
        shape = StageShape(*largest, num_adapted=self._num_adapted(num_tokens), num_encoded=self._num_encoded(num_seqs))
        shape = replace(shape, num_planed=num_tokens * limits.has_planes, num_segmented=num_tokens * limits.tells_pairs)
        num_bytes = stage_bytes(shape, self._index_dtype)
        self._host = [device.staging((num_bytes,), torch.uint8) for _ in range(limits.max_in_flight)]
        self._host_stages = [StageBuffer.of_array(buffer.numpy(), self._index_dtype) for buffer in self._host]
        self._turn = 0
        place = device.torch_device
        self._device = torch.zeros(num_bytes, dtype=torch.uint8, device=place)
        self._device_stage = StageBuffer.of_tensor(self._device, self._index_dtype)
        full = (self._num_groups, num_seqs, max_width)
        self._full_tables = torch.zeros(full, dtype=self._index_dtype, device=place)  # [G, S, M]
        # An encoder's rows are seen by spans of one token each.
        num_spans = num_tokens if limits.max_encoder_rows else num_seqs
        self._semaphores = new_semaphores(num_spans, ops.semaphores_per_span, place)
        # A batch of decodes mostly has the shape of the one before it: making a stage costs 20 us.
        self._last_decodes: list[Stage | None] = [None] * limits.max_in_flight
        self._last: list[Stage | None] = [None] * limits.max_in_flight  # whose contents a buffer has
        self._decode_parts: dict[int, StageParts[Tensor]] = {}

    def fill(self, batch: Batch, sources: np.ndarray | None, keys: np.ndarray | None) -> Stage:
        """Write a batch into the next host buffer. Host only.

        Args:
            sources: [T], see `TokenFeedback`; None: no token is pending.
            keys: [N]; None: all draws are greedy.
        """
        self._turn = (self._turn + 1) % len(self._host)
        stage = self._next_decodes(batch) if batch.is_decode else self._new_stage(self._ragged_shape(batch))
        is_kept = stage is self._last[self._turn]
        self._last[self._turn] = stage
        _write(stage.arrays, batch, is_kept)
        if sources is not None:
            _copy(stage.arrays.sources, sources, padding=-1)
        self._write_draws(stage, batch.draws, keys, is_kept)
        return stage

    def _write_draws(self, stage: Stage, draws: Sequence[Draw], keys: np.ndarray | None, is_kept: bool) -> None:
        """Write the draws. A sequence's parameters never change: only its key differs from the step before."""
        if keys is None:
            stage.arrays.temperatures[:] = 0.0
            stage.params = None
            return
        params = [draw.params for draw in draws]
        if not is_kept or stage.params != params:
            _write_columns(stage.arrays, DrawTable.of(draws, keys, self._vocab_size))
            stage.params = params
        _copy(stage.arrays.keys, keys, padding=0)

    def upload(self, stage: Stage) -> None:
        """Enqueue the copy to the device."""
        if stage.place is None:
            stage.place = self._new_place(stage)
        stage.place.target.copy_(stage.buffer, non_blocking=True)
        if stage.shape.is_decode:
            stage.place.full_tables.copy_(stage.place.parts.block_tables)

    def step(self, stage: Stage, batch: Batch) -> StagedStep:
        """The step on the device, once the stage of this batch is uploaded."""
        if stage.shape.is_decode:
            return self.decode_step(stage.shape.num_spans)
        parts = self.parts_of(stage)
        prefill_lens = [query_len for query_len in batch.query_lens if query_len > 1]
        bounds = max(batch.query_lens), int(batch.context_lens.max()), prefill_lens
        layouts = self._layouts(parts, parts.block_tables, *bounds)
        if self._limits.max_encoder_rows:
            layouts[CROSS_GROUP] = by_token(layouts[CROSS_GROUP], batch.query_lens)
        return StagedStep(parts, layouts)

    def decode_step(self, size: int) -> StagedStep:
        """The step of a batch of `size` decodes: the same memory every time."""
        parts = self._parts_of_decodes(size)
        return StagedStep(parts, self._layouts(parts, self._full_tables[:, :size], 1, self._limits.max_model_len))

    def parts_of(self, stage: Stage) -> StageParts[Tensor]:
        """On the device, once the stage is uploaded."""
        assert stage.place is not None, "not uploaded yet"
        return stage.place.parts

    def clear(self, size: int) -> None:
        """Stage a batch of `size` padding rows: computing it writes nothing."""
        self._device.zero_()
        self._full_tables.zero_()
        parts = self._parts_of_decodes(size)
        parts.slot_mapping.fill_(-1)
        parts.adapters.fill_(-1)
        parts.query_starts.copy_(torch.arange(size + 1))

    def _ragged_shape(self, batch: Batch) -> StageShape:
        num_draws = len(batch.draws)
        return StageShape(
            batch.num_tokens,
            batch.num_spans,
            batch.block_tables.shape[2],
            num_rows=len(batch.wanted_rows),
            num_draws=num_draws,
            num_indexed=0 if batch.draw_index is None else num_draws,
            num_sources=self._num_sources(batch.num_tokens),
            num_groups=self._num_groups,
            num_adapted=self._num_adapted(batch.num_tokens),
            num_planed=0 if batch.planes is None else batch.num_tokens,
            num_encoded=self._num_encoded(batch.num_spans),
            num_segmented=0 if batch.segments is None else batch.num_tokens,
        )

    def _decode_shape(self, size: int, width: int) -> StageShape:
        sources, groups = self._num_sources(size), self._num_groups
        shape = StageShape(size, size, width, 0, size, num_sources=sources, num_groups=groups, is_decode=True)
        return replace(shape, num_adapted=self._num_adapted(size), num_encoded=self._num_encoded(size))

    def _num_sources(self, num_tokens: int) -> int:
        return num_tokens if self._limits.feeds_back else 0

    def _num_adapted(self, num_tokens: int) -> int:
        return num_tokens if self._limits.has_adapters else 0

    def _num_encoded(self, num_spans: int) -> int:
        return num_spans if self._limits.max_encoder_rows else 0

    def _next_decodes(self, batch: Batch) -> Stage:
        """A stage for a batch of decodes, in the next buffer."""
        size = self._decode_sizes[bisect_left(self._decode_sizes, batch.num_spans)]
        width = batch.block_tables.shape[2]
        last = self._last_decodes[self._turn]
        if last is None or last.shape.num_spans != size or last.shape.width != width:
            last = self._last_decodes[self._turn] = self._new_stage(self._decode_shape(size, width))
        return last

    def _new_stage(self, shape: StageShape) -> Stage:
        """A new stage in the next buffer."""
        arrays = self._host_stages[self._turn].cut(shape)
        return Stage(shape, arrays, self._host[self._turn][: stage_bytes(shape, self._index_dtype)])

    def _new_place(self, stage: Stage) -> _Place:
        parts = self._device_stage.cut(stage.shape)
        full = self._full_tables[:, : stage.shape.num_spans, : stage.shape.width]
        return _Place(self._device[: len(stage.buffer)], parts, full)

    def _parts_of_decodes(self, size: int) -> StageParts[Tensor]:
        """The parts of a decode batch on the device, without the block tables."""
        if size not in self._decode_parts:
            self._decode_parts[size] = self._device_stage.cut(self._decode_shape(size, 0))
        return self._decode_parts[size]

    def _layouts(
        self,
        parts: StageParts[Tensor],
        block_tables: Tensor,
        max_query_len: int,
        max_context_len: int,
        prefill_lens: Sequence[int] = (),
    ) -> list[DeviceLayout]:
        layouts = [
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
                is_chunked=group in self._limits.chunked_groups,
                is_state=group in self._limits.state_groups,
            )
            for group, (table, slots, window) in enumerate(
                zip(block_tables, parts.slot_mapping, self._limits.windows, strict=True)
            )
        ]
        if most := self._limits.max_encoder_rows:
            # of decodes; `by_token` makes spans of one token of others
            cross = replace(layouts[CROSS_GROUP], context_lens=parts.encoder_lens, max_context_len=most)
            layouts[CROSS_GROUP] = cross
        return layouts


def _write(arrays: StageParts[np.ndarray], batch: Batch, is_kept: bool) -> None:
    """Write all parts except the draws. `is_kept`: the buffer has a batch of decodes of the same shape."""
    num_tokens, num_spans = batch.num_tokens, batch.num_spans
    _copy(arrays.token_ids, batch.token_ids, padding=0)
    _copy(arrays.positions, batch.positions, padding=0)
    arrays.slot_mapping[:, :num_tokens] = batch.slot_mapping
    arrays.slot_mapping[:, num_tokens:] = -1
    arrays.block_tables[:, :num_spans] = batch.block_tables
    _copy(arrays.context_lens, batch.context_lens, padding=0)
    if batch.encoder_lens is not None:
        _copy(arrays.encoder_lens, batch.encoder_lens, padding=0)
    if is_kept:
        return
    if num_tokens == num_spans:  # padding rows have one token, too
        arrays.query_starts[:] = np.arange(len(arrays.query_starts))
    else:
        arrays.query_starts[0] = 0
        np.cumsum(batch.query_lens, out=arrays.query_starts[1:])
    if batch.adapters is not None:
        _copy(arrays.adapters, batch.adapters, padding=-1)
    if batch.planes is not None:
        arrays.planes[:] = batch.planes
    if batch.segments is not None:
        arrays.segments[:] = batch.segments
    if len(arrays.wanted_rows):
        arrays.wanted_rows[:] = batch.wanted_rows
    if batch.draw_index is not None:
        arrays.draw_index[:] = batch.draw_index


def _write_columns(arrays: StageParts[np.ndarray], table: DrawTable) -> None:
    """Write all of the draws but their keys. Padding rows are greedy: only their temperature counts."""
    _copy(arrays.temperatures, table.temperatures.numpy(), padding=0.0)
    _copy(arrays.top_k, table.top_k.numpy(), padding=1)
    _copy(arrays.top_p, table.top_p.numpy(), padding=1.0)
    _copy(arrays.min_p_floors, table.min_p_floors.numpy(), padding=-np.inf)


def _copy(array: np.ndarray, values: np.ndarray, padding: float) -> None:
    num_values = len(values)
    array[:num_values] = values
    if num_values < len(array):
        array[num_values:] = padding
