"""StepRunner: runs plans over a model and its KV cache, on the host or staged onto an accelerator.

`launch` reads the plan and returns; what it started is asked for later. So the next step can be planned, and launched,
before the tokens of this one are on the host (`TokenFeedback`). Nothing else differs between the two kinds of device
but where the step's integers stand, and that an accelerator runs batches of decodes at fixed sizes (`DecodeGraphs`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lullm.arena.workspace import Workspace
from lullm.log import get_logger
from lullm.models.decoder import CausalLM
from lullm.nn.kv_scale import calibrating_ops
from lullm.ops.attention_layout import KVCache
from lullm.ops.draw_table import DrawTable
from lullm.ops.table import Ops
from lullm.types.step import BlockPair, Span, StepPlan, StepResult, TokenLogprobs
from lullm.worker.batch import Batch, BatchBuilder
from lullm.worker.device import Device, Running
from lullm.worker.feedback import TokenFeedback
from lullm.worker.graphs import DecodeGraphs, DecodeOutput
from lullm.worker.host_decode import HostDecode
from lullm.worker.randomness import uniforms_of
from lullm.worker.sampler import Sampled, Sampler, greedy_tokens, host_draw_table, is_plain
from lullm.worker.swap import split_swap_out

logger = get_logger(__name__)

PROMPT_LOGPROB_ROWS = 256
"""Rows whose logits exist at once for prompt log-probabilities: 256 x 151,936 float32 are 148 MiB."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that a plan holds; see `BatchBuilder`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    window: int | None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A step's input as the host made it: the batch, where pending tokens come from, the draws' random numbers."""

    batch: Batch
    sources: np.ndarray | None
    uniforms: np.ndarray | None
    staged: Any  # what `Staging.fill` gave; None on the host


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a step has computed; tensors may still be on their way to the host."""

    sampled: Sampled | None
    prompt_logprobs: dict[int, list[TokenLogprobs]]
    marks: tuple[Any, Any, Any]
    beside: list[Any]
    """Marks around what was swapped out beside the compute; none: nothing was."""


class StepRunner:
    """Steps of one model on one device.

    Args:
        kv_caches, host_kv_caches: the two pools, by layer.
        scope: entered around every computation; see `StepThreads`.
        runs_ahead: a step may be launched before the result of the one before it was asked for.
        decode_sizes: see `Staging`; for accelerators.
        workspace: for what a CPU records; None: it runs decodes as any other batch. See `DecodeGraphs`.

    Attributes:
        calibrates: the next step that computes something finds the scales of an fp8 cache (`calibrating_ops`).
    """

    def __init__(
        self,
        device: Device,
        ops: Ops,
        model: CausalLM,
        kv_caches: list[KVCache],
        host_kv_caches: list[KVCache],
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
        self._host_kv_caches = host_kv_caches
        self._sampler = sampler
        self._scope = scope
        self._runs_ahead = runs_ahead
        # A batch is valid until its builder makes the next one.
        self._batches = [
            BatchBuilder(
                limits.max_num_seqs,
                limits.max_num_batched_tokens,
                limits.max_model_len,
                limits.block_size,
                limits.window,
            )
            for _ in range(1 + runs_ahead)
        ]
        self.calibrates = False
        self._feedback = TokenFeedback(limits.max_num_seqs, device.torch_device)
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
        self._staging = None
        self.graphs = DecodeGraphs(device, self._decode)
        if device.is_accelerator:
            from lullm.worker.staging import Staging  # loads triton

            self._staging = Staging(
                device,
                limits.max_num_seqs,
                limits.max_num_batched_tokens,
                limits.max_model_len,
                limits.block_size,
                limits.window,
                decode_sizes,
                model.config.vocab_size,
            )

    def launch(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step after those that were started before. The plan may change once this returns."""
        prepared = self._prepare(plan) if plan.spans else None
        work = self._device.start(lambda: self._compute(plan, prepared))
        return _RunningStep(work, self._device)

    def capture_graphs(self, sizes: list[int]) -> None:
        """Record decode steps of these sizes. Blocking. Writes no block."""
        assert self._staging is not None
        with torch.inference_mode():
            self.graphs.capture(sizes, self._staging.clear)

    def _prepare(self, plan: StepPlan) -> _Prepared:
        """Everything that is read from the plan, on the host."""
        self._batches.append(self._batches.pop(0))
        batch = self._batches[-1].build(plan)
        sources = uniforms = None
        if self._runs_ahead:
            sources = self._feedback.sources(plan, batch.token_ids.numpy())
            self._feedback.expect(batch.draws)
        if (self._runs_ahead or self._staging is not None) and any(not d.params.is_greedy for d in batch.draws):
            # Now, while the sequences are as long as they were planned.
            uniforms = uniforms_of(batch.draws)
        staged = None if self._staging is None else self._staging.fill(batch, sources, uniforms)
        return _Prepared(batch, sources, uniforms, staged)

    @torch.inference_mode()
    def _compute(self, plan: StepPlan, prepared: _Prepared | None) -> _Outcome:
        """Move and copy blocks, run the model over the spans, draw tokens. An accelerator is not waited for."""
        with self._scope():
            started = self._device.mark()
            swap_out, swap_out_beside = self._swaps_out(plan, prepared)
            if swap_out:
                self._ops.swap_blocks(self._kv_caches, self._host_kv_caches, swap_out)
            if plan.blocks_to_swap_in:
                self._ops.swap_blocks(self._host_kv_caches, self._kv_caches, plan.blocks_to_swap_in)
            swapped = self._device.mark()
            beside: list[Any] = []
            if swap_out_beside:
                self._device.beside(lambda: beside.extend(self._swap_out_timed(swap_out_beside)))
            try:
                if plan.blocks_to_copy:
                    self._ops.copy_blocks(self._kv_caches, plan.blocks_to_copy)
                sampled, prompt_logprobs = None, {}
                if prepared is not None:
                    sampled, prompt_logprobs = self._run(prepared)
                if sampled is not None:
                    if self._runs_ahead:
                        self._feedback.take(sampled.tokens)
                    sampled = sampled.on_host(self._device.to_host)
            finally:
                if swap_out_beside:
                    self._device.join()
            return _Outcome(sampled, prompt_logprobs, (started, swapped, self._device.mark()), beside)

    def _swaps_out(self, plan: StepPlan, prepared: _Prepared | None) -> tuple[list[BlockPair], list[BlockPair]]:
        """The blocks that go out: (before the step computes, beside it)."""
        if not (plan.blocks_to_swap_out and prepared is not None and self._device.is_accelerator):
            return plan.blocks_to_swap_out, []
        layout = prepared.batch.layout
        return split_swap_out(plan, layout.slot_mapping.numpy(), layout.block_size)

    def _swap_out_timed(self, pairs: list[BlockPair]) -> tuple[Any, Any]:
        started = self._device.mark()
        self._ops.swap_blocks(self._kv_caches, self._host_kv_caches, pairs)
        return started, self._device.mark()

    def _run(self, prepared: _Prepared) -> tuple[Sampled | None, dict[int, list[TokenLogprobs]]]:
        """The model over all spans, and the draws."""
        batch, ops = prepared.batch, self._ops
        is_calibrating, self.calibrates = self.calibrates, False
        if is_calibrating:
            ops = calibrating_ops(ops, self._model)
            logger.info("the scales of the KV cache are those of %d tokens", len(batch.token_ids))
        if self._staging is not None:
            shape, buffer = prepared.staged
            staged = self._staging.upload(shape, buffer, batch)
            parts = staged.parts
            table = parts.draw_table(len(batch.draws))
            if shape.is_decode:
                size = shape.num_spans
                output = self._decode(size, ops) if is_calibrating else self.graphs.run(size)
                return self._sample_decode(output, batch, table), {}
            uniforms = table.uniforms
            token_ids, positions, attention = parts.token_ids, parts.positions, staged.layout
            sources = None if prepared.sources is None else parts.sources
            drawn_rows, draw_index = parts.drawn_rows, None if batch.draw_index is None else parts.draw_index
        else:
            table = None
            token_ids, positions = batch.token_ids, batch.positions
            sources = None if prepared.sources is None else torch.from_numpy(prepared.sources)
            uniforms = None if prepared.uniforms is None else torch.from_numpy(prepared.uniforms)
            if self.host_decode is not None and not is_calibrating and self.host_decode.takes(batch):
                if sources is not None:
                    token_ids = self._feedback.fill_in(token_ids, sources)
                return self._decode_on_host(self.host_decode, batch, token_ids, uniforms), {}
            attention = self._ops.prepare_attention(batch.layout)
            drawn_rows, draw_index = batch.drawn_rows, batch.draw_index
        if sources is not None:
            token_ids = self._feedback.fill_in(token_ids, sources)
        hidden = self._model(token_ids, positions, self._kv_caches, attention, ops)  # [T, H]
        prompt_logprobs = {
            span.seq_id: self._prompt_logprobs(hidden[row : row + len(span.prompt_targets)], span)
            for row, span in batch.prompt_spans
        }
        if not batch.draws:
            return None, prompt_logprobs
        logits = self._model.compute_logits(hidden[drawn_rows], self._ops)  # [R, V]
        if draw_index is not None:
            logits = logits[draw_index]
        return self._sampler.draw(logits, batch.draws, uniforms, table), prompt_logprobs

    def _decode(self, size: int, ops: Ops | None = None) -> DecodeOutput:
        """The staged batch of decodes that is filled up to `size`, and the choice of every row as far as one can."""
        assert self._staging is not None
        ops = ops or self._ops
        staged = self._staging.decode_batch(size)
        token_ids = self._feedback.fill_in(staged.parts.token_ids, staged.parts.sources)
        hidden = self._model(token_ids, staged.parts.positions, self._kv_caches, staged.layout, ops)
        logits = self._model.compute_logits(hidden, ops)
        if ops.draw_tokens is None:
            return DecodeOutput(logits, greedy_tokens(logits))
        return DecodeOutput(logits, ops.draw_tokens(logits, staged.parts.draw_table(size), False))

    def _sample_decode(self, output: DecodeOutput, batch: Batch, table: DrawTable) -> Sampled:
        num_draws = len(batch.draws)
        if is_plain(batch.draws, only_greedy=self._ops.draw_tokens is None):
            return Sampled(batch.draws, output.tokens[:num_draws], None, {})
        return self._sampler.draw(output.logits[:num_draws], batch.draws, table.uniforms, table)

    def _decode_on_host(
        self, host_decode: HostDecode, batch: Batch, token_ids: Tensor, uniforms: Tensor | None
    ) -> Sampled:
        """A batch that it takes. Tokens that more is wanted of than a draw are drawn behind the recording."""
        draws = batch.draws
        if is_plain(draws, only_greedy=True):
            return Sampled(draws, host_decode.run(batch, token_ids, None).tokens, None, {})
        if is_plain(draws, only_greedy=False):
            table = host_draw_table(draws, uniforms, self._model.config.vocab_size)
            return Sampled(draws, host_decode.run(batch, token_ids, table).tokens, None, {})
        return self._sampler.draw(host_decode.run(batch, token_ids, None).logits, draws, uniforms)

    def _prompt_logprobs(self, hidden: Tensor, span: Span) -> list[TokenLogprobs]:
        found: list[TokenLogprobs] = []
        for start in range(0, len(span.prompt_targets), PROMPT_LOGPROB_ROWS):
            part = slice(start, start + PROMPT_LOGPROB_ROWS)
            logits = self._model.compute_logits(hidden[part], self._ops)
            found += self._sampler.prompt_logprobs(logits, span.prompt_targets[part], span.num_prompt_logprobs)
        return found


@dataclass(slots=True)
class _RunningStep:
    """A step that was launched."""

    work: Running[_Outcome]
    device: Device

    def result(self) -> StepResult:
        outcome = self.work.result()
        tokens = [] if outcome.sampled is None else outcome.sampled.drawn()
        started, swapped, ended = outcome.marks
        swap_s = self.device.seconds_between(started, swapped)
        if outcome.beside:
            swap_s += self.device.seconds_between(*outcome.beside)
        return StepResult(
            tokens,
            outcome.prompt_logprobs,
            swap_s,
            self.device.seconds_between(swapped, ended),
        )
