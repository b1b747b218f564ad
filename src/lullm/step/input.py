"""The input of a step: from a plan to the tensors that the model and the sampler read.

It is made in two halves. `InputBuilder.prepare` reads the plan on the host, before the step is started.
`InputBuilder.place` is part of the step's work: one copy brings all numbers to the device (`Staging`), and the tokens
of earlier steps are filled in (`TokenFeedback`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from torch import Tensor

from lullm.device.device import Device
from lullm.nn.context import MutualRows
from lullm.ops.draw_table import DrawTable
from lullm.ops.state.layout import StateLayout
from lullm.ops.table import Ops
from lullm.sampling.race import keys_of
from lullm.step.batch import Batch, BatchBuilder
from lullm.step.feedback import TokenFeedback
from lullm.step.limits import StepLimits
from lullm.step.stage_parts import StageParts
from lullm.step.staging import Stage, StagedStep, Staging
from lullm.step.vision.mutual import mutual_rows
from lullm.types.step import StepPlan


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """A step on the host: the batch, and its numbers in a buffer that is copied to the device."""

    batch: Batch
    stage: Stage
    has_pending: bool
    """Whether an earlier step has yet to draw a token."""
    first_place: int
    """The place of the drawn tokens for later steps, see `TokenFeedback.expect`."""

    @property
    def decode_size(self) -> int | None:
        """The size that a batch of decodes is padded to. None: not a batch of decodes."""
        return self.stage.shape.num_spans if self.stage.shape.is_decode else None


@dataclass(frozen=True, slots=True)
class StepInput:
    """The input of a step on its device."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    attention: Sequence[Any]  # by KV cache group: from `Ops.prepare_attention`, or a `StateLayout`
    wanted_rows: Tensor  # [R] int64, see `Batch`; a batch of decodes draws from all rows and lists none
    draw_index: Tensor  # [N] int64, see `Batch`; empty: one draw per row
    draws: DrawTable  # of N draws
    planes: Tensor | None = None  # [3, T] int64, see `Batch`
    segments: Tensor | None = None  # [T] int64, see `Batch`
    mutual: Sequence[Sequence[MutualRows]] = ()  # by KV cache group; empty: no rows see rows behind them


class InputBuilder:
    """Makes the inputs of steps, in order.

    Args:
        decode_sizes, vocab_size: see `Staging`.
        adapter_rows: `LoraPlaces.rows`; None: spans have no adapters.
    """

    def __init__(
        self,
        device: Device,
        ops: Ops,
        limits: StepLimits,
        decode_sizes: Sequence[int],
        vocab_size: int,
        adapter_rows: Tensor | None = None,
    ):
        self._ops = ops
        self._adapter_rows = adapter_rows
        # Attention without a cache computes spans of one length together, if they stand side by side.
        self._has_no_cache = not limits.windows
        # A batch is valid until its builder makes the next one.
        self._builders = [BatchBuilder(limits) for _ in range(limits.max_in_flight)]
        self._in_windows = limits.sees_in_windows
        self._feedback: TokenFeedback | None = None
        if limits.feeds_back:
            self._feedback = TokenFeedback(limits.max_in_flight - 1, limits.max_num_seqs, device.torch_device)
        self._staging = Staging(device, ops, limits, decode_sizes, vocab_size)

    def prepare(self, plan: StepPlan) -> PreparedInput:
        """Read the plan, on the host. At most `max_in_flight` prepared inputs are in use at a time."""
        if self._has_no_cache:
            plan = msgspec.structs.replace(plan, spans=sorted(plan.spans, key=lambda span: span.num_tokens))
        self._builders.append(self._builders.pop(0))
        batch = self._builders[-1].build(plan)
        sources = keys = None
        first_place = 0
        if self._feedback is not None:
            sources = self._feedback.sources(plan, batch.token_ids)
            first_place = self._feedback.expect(batch.draws)
        if any(not draw.params.is_greedy for draw in batch.draws):
            keys = keys_of(batch.draws)
        stage = self._staging.fill(batch, sources, keys)
        return PreparedInput(batch, stage, sources is not None, first_place)

    def place(self, prepared: PreparedInput) -> None:
        """Copy the input to the device and fill in pending tokens. Inside the step's work, after the step before."""
        self._staging.upload(prepared.stage)
        if self._adapter_rows is not None:
            adapters = self._staging.parts_of(prepared.stage).adapters
            self._adapter_rows[: len(adapters)].copy_(adapters)
        if prepared.has_pending and self._feedback is not None:
            parts = self._staging.parts_of(prepared.stage)
            parts.token_ids.copy_(self._feedback.fill_in(parts.token_ids, parts.sources))

    def placed(self, prepared: PreparedInput) -> StepInput:
        """The input that was placed last."""
        staged = self._staging.step(prepared.stage, prepared.batch)
        step, shown = self._input(staged), prepared.batch.mutual
        return replace(step, mutual=mutual_rows(staged.layouts, shown, self._ops, self._in_windows)) if shown else step

    def placed_decodes(self, size: int) -> StepInput:
        """The batch of decodes that was placed last, padded to `size`: the same memory every time."""
        return self._input(self._staging.decode_step(size))

    def placed_draws(self, prepared: PreparedInput) -> DrawTable:
        """The draws of the input that was placed last."""
        return _draws(self._staging.parts_of(prepared.stage)).part(range(len(prepared.batch.draws)))

    def clear_decodes(self, size: int) -> None:
        """See `Staging.clear`."""
        self._staging.clear(size)

    def keep(self, prepared: PreparedInput, tokens: Tensor) -> None:
        """Store the drawn tokens [N] int64 for the next steps. On the device, at the step's end."""
        if self._feedback is not None:
            self._feedback.take(tokens, prepared.first_place)

    def _input(self, staged: StagedStep) -> StepInput:
        parts = staged.parts
        return StepInput(
            token_ids=parts.token_ids,
            positions=parts.positions,
            attention=[
                StateLayout(layout) if layout.is_state else self._ops.prepare_attention(layout)
                for layout in staged.layouts
            ],
            wanted_rows=parts.wanted_rows,
            draw_index=parts.draw_index,
            draws=_draws(parts),
            planes=parts.planes if parts.planes.shape[1] else None,
            segments=parts.segments if len(parts.segments) else None,
        )


def _draws(parts: StageParts[Tensor]) -> DrawTable:
    return DrawTable(parts.temperatures, parts.top_k, parts.top_p, parts.min_p_floors, parts.keys)
