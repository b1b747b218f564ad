"""The input of a step: from a plan to the tensors that the model and the sampler read.

It is made in two halves. `InputBuilder.prepare` reads the plan on the host, before the step is started; then the plan
may change. `InputBuilder.place` is part of the step's work: on a CPU everything is in place, to an accelerator it goes
in one copy (`Staging`). Only then are the tokens known that the step before draws (`TokenFeedback`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lullm.device.device import Device
from lullm.ops.draw_table import DrawTable
from lullm.sampling.randomness import uniforms_of
from lullm.step.batch import Batch, BatchBuilder
from lullm.step.feedback import TokenFeedback
from lullm.types.step import StepPlan

if TYPE_CHECKING:
    from lullm.step.staging import StagedBatch, StageShape


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that a plan holds; see `BatchBuilder`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    window: int | None


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """What the host knows of a step: the batch, where pending tokens come from, the draws' random numbers.

    `sources` [T], None: no token is pending. `uniforms` [N], None: all draws are greedy. `staged`: the same in a buffer
    that goes to an accelerator; None on a CPU.
    """

    batch: Batch
    sources: np.ndarray | None
    uniforms: np.ndarray | None
    staged: "tuple[StageShape, Tensor] | None"


@dataclass(frozen=True, slots=True)
class StepInput:
    """What a step computes with, on its device."""

    token_ids: Tensor  # [T] int64, pending ones among them
    sources: Tensor | None  # [T] int64, see `TokenFeedback`; None: nothing is pending
    positions: Tensor  # [T] int64
    attention: Any  # a prepared layout; None: `Ops.prepare_attention` is still to be asked for it
    drawn_rows: Tensor  # [R] int64
    draw_index: Tensor | None  # [N] int64, see `Batch`
    uniforms: Tensor | None  # [N] float64
    table: DrawTable | None  # of N draws; None: the sampler makes it
    staged_size: int | None = None  # a batch of decodes, filled up to this size at the place that graphs read


class InputBuilder:
    """Makes the inputs of steps, one after the other.

    Args:
        runs_ahead: a step may be prepared before the result of the one before it is known.
        decode_sizes, vocab_size: see `Staging`; for accelerators.
    """

    def __init__(self, device: Device, limits: StepLimits, runs_ahead: bool, decode_sizes: list[int], vocab_size: int):
        sizes = limits.max_num_batched_tokens, limits.max_model_len, limits.block_size, limits.window
        # A batch is valid until its builder makes the next one.
        self._batches = [BatchBuilder(limits.max_num_seqs, *sizes) for _ in range(1 + runs_ahead)]
        self._runs_ahead = runs_ahead
        self._feedback = TokenFeedback(limits.max_num_seqs, device.torch_device)
        self._staging = None
        if device.is_accelerator:
            from lullm.step.staging import Staging  # loads triton

            self._staging = Staging(device, limits.max_num_seqs, *sizes, decode_sizes, vocab_size)

    def prepare(self, plan: StepPlan) -> PreparedInput:
        """Everything that is read from the plan, on the host. At most two are in use at a time."""
        self._batches.append(self._batches.pop(0))
        batch = self._batches[-1].build(plan)
        sources = uniforms = None
        if self._runs_ahead:
            sources = self._feedback.sources(plan, batch.token_ids.numpy())
            self._feedback.expect(batch.draws)
        if any(not draw.params.is_greedy for draw in batch.draws):
            uniforms = uniforms_of(batch.draws)
        staged = None if self._staging is None else self._staging.fill(batch, sources, uniforms)
        return PreparedInput(batch, sources, uniforms, staged)

    def place(self, prepared: PreparedInput) -> StepInput:
        """Bring it to the device. Within the step's work; valid until the next is placed."""
        batch = prepared.batch
        if self._staging is None:
            sources = None if prepared.sources is None else torch.from_numpy(prepared.sources)
            uniforms = None if prepared.uniforms is None else torch.from_numpy(prepared.uniforms)
            rows, index = batch.drawn_rows, batch.draw_index
            return StepInput(batch.token_ids, sources, batch.positions, None, rows, index, uniforms, None)
        assert prepared.staged is not None
        staged = self._staging.upload(*prepared.staged, batch)
        return _staged_input(staged, len(batch.draws), prepared.sources is not None, batch.draw_index is not None)

    def staged_decode(self, size: int) -> StepInput:
        """The place of a batch of decodes that is filled up to `size`: the same tensors every time."""
        assert self._staging is not None
        return _staged_input(self._staging.decode_batch(size), size, has_sources=True, has_index=False)

    def clear_decode(self, size: int) -> None:
        """See `Staging.clear`."""
        assert self._staging is not None
        self._staging.clear(size)

    def token_ids(self, step: StepInput) -> Tensor:
        """[T] int64, none of them pending. On the device, before the step computes."""
        return step.token_ids if step.sources is None else self._feedback.fill_in(step.token_ids, step.sources)

    def keep(self, tokens: Tensor) -> None:
        """The step has drawn these, [N] int64, for the next one to read. On the device, at the step's end."""
        if self._runs_ahead:
            self._feedback.take(tokens)


def _staged_input(staged: "StagedBatch", num_draws: int, has_sources: bool, has_index: bool) -> StepInput:
    parts = staged.parts
    table = parts.draw_table(num_draws)
    return StepInput(
        parts.token_ids,
        parts.sources if has_sources else None,
        parts.positions,
        staged.layout,
        parts.drawn_rows,
        parts.draw_index if has_index else None,
        table.uniforms,
        table,
        staged.shape.num_spans if staged.shape.is_decode else None,
    )
