"""StepRunner: runs plans over a model and its KV cache.

`launch` reads the plan and returns; what it started is asked for later. So the next step can be planned, and launched,
before the tokens of this one are on the host. What a step computes with is made by `InputBuilder`, what it moves by
`BlockMoves`. Batches of decodes are replayed where they can be recorded: by `DecodeGraphs` on an accelerator, by
`HostDecode` on a CPU.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lullm.arena.workspace import Workspace
from lullm.device.device import Device
from lullm.kv.cache_group import cache_layout
from lullm.log import get_logger
from lullm.models.protocol import Model
from lullm.nn.context import StepContext
from lullm.ops.attention_layout import PreparedAttention
from lullm.ops.draw_table import DrawTable
from lullm.ops.layer_cache import LayerCache
from lullm.ops.table import Ops
from lullm.sampling.sampler import Sampled, Sampler, greedy_tokens, is_plain
from lullm.step.batch import Batch
from lullm.step.block_move import BlockMoves, StepMarks
from lullm.step.graphs import DecodeGraphs, DecodeOutput
from lullm.step.host_decode import HostDecode
from lullm.step.input import InputBuilder, PreparedInput, StepInput, StepLimits
from lullm.types.packed import unpack
from lullm.types.step import Running, Span, StepPlan, StepResult, TokenLogprobs

logger = get_logger(__name__)

PROMPT_LOGPROB_ROWS = 256
"""Rows whose logits exist at once for prompt log-probabilities: 256 x 151,936 float32 are 148 MiB."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a step has computed; tensors may still be on their way to the host."""

    sampled: Sampled | None
    prompt_logprobs: dict[int, list[TokenLogprobs]]


class StepRunner:
    """Steps of one model on one device.

    Args:
        kv_caches, host_kv_caches: the two pools, by layer.
        scope: entered around every computation; see `StepThreads`.
        runs_ahead: a step may be launched before the result of the one before it was asked for.
        decode_sizes: see `Staging`; for accelerators.
        workspace: for what a CPU records; None: it runs decodes as any other batch. See `DecodeGraphs`.

    Attributes:
        calibrates: the next step that computes something finds the open scales of an fp8 cache
            (`KVScales.calibrate`).
    """

    def __init__(
        self,
        device: Device,
        ops: Ops,
        model: Model,
        kv_caches: list[LayerCache],
        host_kv_caches: list[LayerCache],
        sampler: Sampler,
        limits: StepLimits,
        scope: Callable[[], AbstractContextManager[None]],
        runs_ahead: bool,
        decode_sizes: list[int],
        workspace: Workspace | None = None,
    ):
        self._device = device
        self._ops = ops
        self._model = model
        self._kv_caches = kv_caches
        self._groups = cache_layout(model.config.layer_kinds).groups
        self._sampler = sampler
        self._scope = scope
        self._moves = BlockMoves(device, ops, kv_caches, host_kv_caches)
        self._inputs = InputBuilder(device, limits, runs_ahead, decode_sizes, model.config.vocab_size)
        self.calibrates = False
        self.graphs = DecodeGraphs(device, self._decode)
        self.host_decode = None
        if workspace is not None:
            self.host_decode = HostDecode(
                device,
                ops,
                model,
                kv_caches,
                limits.max_num_seqs,
                limits.max_model_len,
                limits.block_size,
                limits.window,
                workspace,
            )

    @property
    def model(self) -> Model:
        """What the steps compute with. `model.load_weights` is where trainers push weights."""
        return self._model

    def launch(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step after those that were started before."""
        prepared = self._inputs.prepare(plan) if plan.spans else None
        work = self._device.start(lambda: self._do(plan, prepared))
        return _RunningStep(work, self._device)

    def capture_graphs(self, sizes: list[int]) -> None:
        """Record decode steps of these sizes. Blocking. Writes no block. For accelerators."""
        with torch.inference_mode():
            self.graphs.capture(sizes, self._inputs.clear_decode)

    @torch.inference_mode()
    def _do(self, plan: StepPlan, prepared: PreparedInput | None) -> tuple[_Outcome, StepMarks]:
        """Move and copy blocks, run the model over the spans, draw tokens. An accelerator is not waited for."""
        with self._scope():
            layout = None if prepared is None else prepared.batch.layout
            return self._moves.around(plan, layout, lambda: self._compute(prepared))

    def _compute(self, prepared: PreparedInput | None) -> _Outcome:
        if prepared is None:
            return _Outcome(None, {})
        sampled, prompt_logprobs = self._run(prepared.batch, self._inputs.place(prepared))
        if sampled is not None:
            self._inputs.keep(sampled.tokens)
            sampled = sampled.on_host(self._device.to_host)
        return _Outcome(sampled, prompt_logprobs)

    def _run(self, batch: Batch, step: StepInput) -> tuple[Sampled | None, dict[int, list[TokenLogprobs]]]:
        """The model over all spans, and the draws."""
        calibrates = self._take_calibration(batch)
        if self._is_decode(batch, step, calibrates):
            return self._run_decode(batch, step, calibrates), {}
        attention = self._attention_of_groups(batch, step)
        token_ids = self._inputs.token_ids(step)
        context = StepContext(step.positions, attention, self._kv_caches, self._ops, calibrates=calibrates)
        hidden = self._model(token_ids, context)  # [T, H]
        prompt_logprobs = {span.seq_id: self._prompt_logprobs(hidden[row:], span) for row, span in batch.prompt_spans}
        if not batch.draws:
            return None, prompt_logprobs
        logits = self._model.compute_logits(hidden[step.drawn_rows], self._ops)  # [R, V]
        if step.draw_index is not None:
            logits = logits[step.draw_index]
        return self._sampler.draw(logits, batch.draws, step.uniforms, step.table), prompt_logprobs

    def _attention_of_groups(self, batch: Batch, step: StepInput) -> list[PreparedAttention]:
        """The prepared layout of each KV cache group."""
        if step.attention is not None:
            return self._with_windows(step.attention)
        layouts = self._with_windows(batch.layout)
        prepared = {layout.window: self._ops.prepare_attention(layout) for layout in layouts}
        return [prepared[layout.window] for layout in layouts]

    def _with_windows(self, layout: Any) -> list[Any]:
        """A layout for each KV cache group, which differ in their windows."""
        groups = self._groups
        return [layout] if len(groups) == 1 else [replace(layout, window=group.window) for group in groups]

    def _take_calibration(self, batch: Batch) -> bool:
        """Whether this step finds the scales of the cache: only the first one does."""
        calibrates, self.calibrates = self.calibrates, False
        if calibrates:
            logger.info("the scales of the KV cache are those of %d tokens", len(batch.token_ids))
        return calibrates

    def _is_decode(self, batch: Batch, step: StepInput, calibrates: bool) -> bool:
        """Whether it goes the short way, which is recorded: staged for it, or one that `HostDecode` takes."""
        if step.staged_size is not None:
            return True
        return self.host_decode is not None and not calibrates and self.host_decode.takes(batch)

    def _run_decode(self, batch: Batch, step: StepInput, calibrates: bool) -> Sampled:
        """Draws that more is wanted of than a token are made behind the recording."""
        draws = batch.draws
        is_drawn = is_plain(draws, only_greedy=self._ops.draw_tokens is None)
        if step.staged_size is not None:
            size = step.staged_size
            output = self._decode(size, calibrates=True) if calibrates else self.graphs.run(size)
        else:
            assert self.host_decode is not None
            table = None
            if is_drawn and step.uniforms is not None:
                table = DrawTable.of(draws, step.uniforms.numpy(), self._model.config.vocab_size)
            output = self.host_decode.run(batch, self._inputs.token_ids(step), table)
        if is_drawn:
            return Sampled(draws, output.tokens[: len(draws)], None, {})
        return self._sampler.draw(output.logits[: len(draws)], draws, step.uniforms, step.table)

    def _decode(self, size: int, calibrates: bool = False) -> DecodeOutput:
        """What graphs record: the staged batch, filled up to `size`, and the choice of every row as far as one can."""
        ops, step = self._ops, self._inputs.staged_decode(size)
        context = StepContext(
            step.positions, self._with_windows(step.attention), self._kv_caches, ops, calibrates=calibrates
        )
        hidden = self._model(self._inputs.token_ids(step), context)
        logits = self._model.compute_logits(hidden, ops)
        if ops.draw_tokens is None:
            return DecodeOutput(logits, greedy_tokens(logits))
        assert step.table is not None
        return DecodeOutput(logits, ops.draw_tokens(logits, step.table, False))

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
        )
