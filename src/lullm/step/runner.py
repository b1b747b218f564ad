"""ModelRunner: runs plans over a model and its KV cache.

`launch` reads the plan and returns; the caller waits for the result later. So the next step can be planned and launched
before the tokens of this one are on the host. `InputBuilder` makes a step's tensors, `BlockMoves` moves its blocks, and
`DecodeGraphs` replays recorded batches of decodes.
"""

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from lullm.arena.workspace import Workspace
from lullm.device.device import Device
from lullm.log import get_logger
from lullm.models.protocol import Model
from lullm.nn.context import ShownRows, StepContext, Watch
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.table import Ops
from lullm.sampling.draw_share import DrawShare
from lullm.sampling.masks import MaskMaker, StepGuides
from lullm.sampling.sampler import Sampled, Sampler, greedy_tokens, is_plain
from lullm.step.batch import Batch
from lullm.step.block_move import BlockMoves, CachePools, StepMarks
from lullm.step.encoder.split import NO_WRITES, EncoderWrites, split_plan
from lullm.step.encoder.watch import AttentionWatch
from lullm.step.encoder.writer import EncoderWriter, with_slots
from lullm.step.first_touch import FirstTouch
from lullm.step.graphs import DecodeGraphs, DecodeOutput, StreamOutput, decode_sizes
from lullm.step.input import InputBuilder, PreparedInput, StepInput
from lullm.step.limits import StepLimits
from lullm.step.pooling import PooledStep, pool_rows
from lullm.step.relay import Relay
from lullm.step.vision.rows import TileRowStore
from lullm.types.draw import Draw
from lullm.types.packed import unpack
from lullm.types.step import Running, Span, StepPlan, StepResult, TokenLogprobs

logger = get_logger(__name__)

PROMPT_LOGPROB_ROWS = 256
"""Rows whose logits exist at once for prompt log-probabilities: 256 x 151,936 float32 are 148 MiB."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The results of a step; tensors may still be on their way to the host."""

    sampled: Sampled | None
    prompt_logprobs: dict[int, list[TokenLogprobs]]
    pooled: PooledStep | AttentionWatch | None = None


class AdapterPlaces(Protocol):
    """The adapters that a step may use."""

    rows: Tensor
    """By row of a step, the place of its adapter. See `LoraWeights`."""

    def put(self, place: int, number: int) -> None:
        """Put the adapter of this number into a place."""
        ...


@dataclass(frozen=True, slots=True)
class Computing:
    """The parts that compute. `scope` is entered around every computation; see `StepThreads`."""

    device: Device
    ops: Ops
    scope: Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The memory that steps write to.

    Args:
        kv_caches: by layer, over the tensors of `pools.device`; several layers may share a slot.
        workspace: for the results of recorded decodes, on a device that records them as they occur. None: only
            `capture_graphs` records decodes, and others are eager.
        adapters: puts adapters into their places; None: there are none.
    """

    kv_caches: Sequence[LayerCache]
    pools: CachePools
    workspace: Workspace | None = None
    adapters: AdapterPlaces | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """The parts that draw tokens.

    `share`: which rows of a batch of decodes this worker draws. In other batches each worker that shares the head draws
    all rows.
    """

    sampler: Sampler
    masks: MaskMaker
    share: DrawShare


class ModelRunner:
    """Steps of one model on one device.

    Args:
        relay: to the other stages of a pipeline. Only the last one draws.

    Attributes:
        calibrates: the next step that computes sets the open scales of an fp8 cache (`KVScales.calibrate`).
    """

    def __init__(
        self,
        computing: Computing,
        model: Model,
        memory: StepMemory,
        drawing: Drawing,
        limits: StepLimits,
        relay: Relay,
    ):
        self._device, self._ops, self._scope = computing.device, computing.ops, computing.scope
        device, ops = self._device, self._ops
        self._model = model
        self._kv_caches, pools, self._adapters = memory.kv_caches, memory.pools, memory.adapters
        self._sampler, self._masks, self._share = drawing.sampler, drawing.masks, drawing.share
        self._share_ops = self._share.ops(ops)
        self._relay = relay
        self._tiles = TileRowStore(device, model, ops)
        self._encoder: EncoderWriter | None = None
        if limits.max_encoder_rows:
            self._encoder = EncoderWriter(device, ops, model, self._tiles)
        self._block_size = limits.block_size
        self._moves = BlockMoves(device, ops, pools, limits.state_groups)
        self._first_touch: FirstTouch | None = None  # a device's memory is there from the start
        if not device.is_accelerator and pools.device:
            sides = [side for cache in pools.device for side in cache.tensors]
            self._first_touch = FirstTouch(sides, limits.block_size, limits.num_shares or (1,) * len(limits.windows))
        self._decode_sizes = decode_sizes(device, limits.max_num_seqs)
        rows = None if self._adapters is None else self._adapters.rows
        self._inputs = InputBuilder(device, ops, limits, self._decode_sizes, model.config.vocab_size, rows)
        self.calibrates = False
        runner = weakref.proxy(self)  # no circle: `del` of an engine frees its arenas at once

        def compute(size: int) -> tuple[Tensor, ...]:
            decodes: tuple[Tensor, ...] = (runner._forward_decodes if relay.is_last else runner._pass_decodes)(size)
            return decodes

        self.graphs: DecodeGraphs[tuple[Tensor, ...]] = DecodeGraphs(device, compute, memory.workspace)

    @property
    def model(self) -> Model:
        """The model of the steps. Trainers push weights through `model.load_weights`."""
        return self._model

    def launch(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step, after the steps that were started before."""
        writes = NO_WRITES
        if self._encoder is not None:
            plan, writes = split_plan(plan, self._block_size)
        prepared = self._inputs.prepare(plan) if plan.spans else None
        work = self._device.start(lambda: self._move_and_compute(plan, prepared, writes))
        return _RunningStep(work, self._device)

    def forget_tiles(self) -> None:
        """The engine has forgotten the rows of pictures, too; later plans have their tiles again."""
        self._tiles.forget()

    def forget_touched(self) -> None:
        """The KV cache's memory was released, so later steps touch its blocks again before they write them."""
        if self._first_touch is not None:
            self._first_touch.forget()

    def capture_graphs(self) -> None:
        """Record decodes, on a device that records them before the first request. Blocking. Writes no block."""
        if self._device.records_ahead:
            with torch.inference_mode():
                self.graphs.capture(self._decode_sizes, self._inputs.clear_decodes)

    @torch.inference_mode()
    def _move_and_compute(
        self, plan: StepPlan, prepared: PreparedInput | None, writes: EncoderWrites
    ) -> tuple[_Outcome, StepMarks]:
        """The whole work of a step. Does not wait for an accelerator."""
        with self._scope():
            if self._adapters is not None:
                for place, number in plan.adapters_to_place:
                    self._adapters.put(place, number)
            slot_mapping = None if prepared is None else prepared.batch.slot_mapping
            if self._encoder is not None:
                slot_mapping = with_slots(slot_mapping, writes)
            if slot_mapping is not None and self._first_touch is not None:
                self._first_touch.before_writing(slot_mapping)
            return self._moves.moving_blocks(plan, slot_mapping, lambda: self._compute_spans(plan, prepared, writes))

    def _compute_spans(self, plan: StepPlan, prepared: PreparedInput | None, writes: EncoderWrites) -> _Outcome:
        self._tiles.update(plan)
        if self._encoder is not None:
            self._encoder.write(writes, self._kv_caches)
        if prepared is None:
            return _Outcome(None, {})
        is_last = self._relay.is_last
        guides = self._masks.start(self._own_draws(prepared) if is_last else (), self._sampler.is_late)
        self._inputs.place(prepared)
        self._relay.receive(prepared.batch.num_tokens)
        calibrates = self._take_calibration(prepared.batch)
        if not is_last:
            self._relay.send(self._pass(prepared, calibrates))
            return _Outcome(None, {})
        if prepared.decode_size is not None:
            outcome = _Outcome(self._draw_decodes(prepared, prepared.decode_size, calibrates, guides), {})
        else:
            outcome = self._draw_ragged(prepared, calibrates, guides)
        if isinstance(outcome.pooled, PooledStep):
            outcome = replace(outcome, pooled=outcome.pooled.on_host(self._device.to_host))
        if outcome.sampled is None:
            return outcome
        self._inputs.keep(prepared, outcome.sampled.tokens)
        return replace(outcome, sampled=outcome.sampled.on_host(self._device.to_host))

    def _take_calibration(self, batch: Batch) -> bool:
        """Whether this step sets the scales of the cache: only the first one does."""
        calibrates, self.calibrates = self.calibrates, False
        if calibrates:
            logger.info("the scales of the KV cache are those of %d tokens", len(batch.token_ids))
        return calibrates

    def _draw_ragged(self, prepared: PreparedInput, calibrates: bool, guides: StepGuides) -> _Outcome:
        """Run the model over spans of any lengths, and draw."""
        batch, step = prepared.batch, self._inputs.placed(prepared)
        watch = self._watch(batch)
        hidden = self._forward(step, calibrates, self._tiles.shown(batch.tiles), batch.query_lens, watch)
        prompt_logprobs = {span.seq_id: self._prompt_logprobs(hidden[row:], span) for row, span in batch.prompt_spans}
        wanted, num_drawn = hidden[step.wanted_rows], len(batch.drawn_rows)
        pooled: PooledStep | AttentionWatch | None = watch
        if batch.pooled_spans and watch is None:
            pooled = pool_rows(self._model, self._ops, wanted[num_drawn:], batch.pooled_spans)
        if not batch.draws:
            return _Outcome(None, prompt_logprobs, pooled)
        logits = self._model.compute_logits(wanted[:num_drawn], self._ops)  # [R, V]
        if len(step.draw_index):
            logits = logits[step.draw_index]
        return _Outcome(self._sampler.draw(logits, batch.draws, step.draws, guides), prompt_logprobs, pooled)

    def _watch(self, batch: Batch) -> AttentionWatch | None:
        """The watch over attention to an encoder's rows, if that is what is pooled."""
        if self._encoder is None or not batch.pooled_spans:
            return None
        device, encoder = self._device, self._model.config.encoder
        assert encoder is not None, "as the limits say"
        return AttentionWatch(encoder.alignment_heads, batch, self._block_size, device.torch_device, device.to_host)

    def _draw_decodes(self, prepared: PreparedInput, size: int, calibrates: bool, guides: StepGuides) -> Sampled:
        """Run the model over one token per sequence, replayed if it was recorded, with one draw each.

        The recording draws by temperature and truncation only. Other draws are made from its logits afterwards.
        """
        draws, share = prepared.batch.draws, self._share
        logits, tokens = self._forward_decodes(size, calibrates=True) if calibrates else self.graphs.run(size)
        if is_plain(draws, only_greedy=self._ops.draw_tokens is None):
            return Sampled(draws, share.tokens(tokens, size)[: len(draws)], None, {})
        own = self._own_draws(prepared)
        table = share.table(self._inputs.placed_draws(prepared), size)
        given = logits[: len(own)], own, table, guides, tokens[: len(own)], share.num_best(draws, size)
        return share.sampled(self._sampler.draw(*given), draws, size)

    def _own_draws(self, prepared: PreparedInput) -> Sequence[Draw]:
        """The draws that this worker makes."""
        draws, size = prepared.batch.draws, prepared.decode_size
        return draws if size is None else self._share.draws(draws, size)

    def _forward_decodes(self, size: int, calibrates: bool = False) -> DecodeOutput:
        """The function that is recorded: the placed batch, padded to `size`, and a token for each own row."""
        step = self._inputs.placed_decodes(size)
        logits = self._model.compute_logits(self._forward(step, calibrates), self._share_ops)  # [rows, V]
        if self._ops.draw_tokens is None:
            return DecodeOutput(logits, greedy_tokens(logits))
        return DecodeOutput(logits, self._ops.draw_tokens(logits, self._share.table(step.draws, size), False))

    def _pass(self, prepared: PreparedInput, calibrates: bool) -> Tensor:
        """The input of the next stage [T, H]."""
        size, num_rows = prepared.decode_size, prepared.batch.num_tokens
        if size is None:
            return self._forward(self._inputs.placed(prepared), calibrates, self._tiles.shown(prepared.batch.tiles))
        [stream] = self._pass_decodes(size, calibrates=True) if calibrates else self.graphs.run(size)
        return stream[:num_rows]

    def _pass_decodes(self, size: int, calibrates: bool = False) -> StreamOutput:
        """The function that is recorded on a stage that is not the last."""
        return StreamOutput(self._forward(self._inputs.placed_decodes(size), calibrates))

    def _forward(
        self,
        step: StepInput,
        calibrates: bool,
        shown: Sequence[ShownRows] = (),
        query_lens: Sequence[int] = (),
        watch: Watch | None = None,
    ) -> Tensor:
        """The hidden states [T, H]."""
        stream = self._relay.stream(len(step.token_ids))
        context = StepContext(
            step.positions,
            step.attention,
            self._kv_caches,
            self._ops,
            stream=stream,
            calibrates=calibrates,
            shown=shown,
            planes=step.planes,
            query_lens=query_lens,
            segments=step.segments,
            mutual=step.mutual,
            watch=watch,
        )
        return self._model(step.token_ids, context)

    def _prompt_logprobs(self, hidden: Tensor, span: Span) -> list[TokenLogprobs]:
        found: list[TokenLogprobs] = []
        targets = unpack(span.prompt_targets)
        for start in range(0, len(targets), PROMPT_LOGPROB_ROWS):
            part = targets[start : start + PROMPT_LOGPROB_ROWS]
            logits = self._model.compute_logits(hidden[start : start + len(part)], self._ops)
            found += self._sampler.prompt_logprobs(logits, part, span.num_prompt_logprobs)
        return found


@dataclass(slots=True)
class _RunningStep:
    """A step that was launched."""

    work: Running[tuple[_Outcome, StepMarks]]
    device: Device

    def result(self) -> StepResult:
        outcome, marks = self.work.result()
        tokens = [] if outcome.sampled is None else outcome.sampled.drawn()
        return StepResult(
            tokens,
            outcome.prompt_logprobs,
            swap_s=marks.swap_s(self.device),
            compute_s=marks.compute_s(self.device),
            pooled=[] if outcome.pooled is None else outcome.pooled.parts(),
        )
