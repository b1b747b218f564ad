"""How a preempted group gives its blocks back: it is swapped to the host pool, or computed again later.

Swapping moves the group's blocks out and back: time = 2 x bytes / copy bandwidth. Recomputing runs its tokens through
the model once more: time = tokens / prefill speed. Mode 'auto' takes the cheaper one. The speed of copies is measured
at the start and corrected by later steps. The speed of prefill is a mean over the engine's own steps; to measure it at
the start as well took 1 s for a 0.6B model on a slow processor.
"""

import enum
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from lullm.config.engine_option import PreemptionMode
from lullm.types.step import StepPlan, StepResult

Action = Literal["recompute", "swap"]

_WEIGHT = 0.2  # of a new observation in the running mean: a few steps correct a wrong start
_MIN_TOKENS = 32  # a step with fewer tokens is bound by reading the weights, not by prefill
_MIN_BLOCKS = 2


@dataclass(slots=True)
class Speeds:
    """Running means: block copies between the pools in bytes per second, prefill in tokens per second (0: unknown)."""

    copy_bytes_per_s: float
    prefill_tokens_per_s: float = 0.0
    num_prefills: int = 0

    def observe_copy(self, num_blocks: int, block_bytes: int, seconds: float) -> None:
        """A step has moved `num_blocks` between the pools in `seconds`."""
        if num_blocks >= _MIN_BLOCKS and seconds > 0:
            self.copy_bytes_per_s += _WEIGHT * (num_blocks * block_bytes / seconds - self.copy_bytes_per_s)

    def observe_compute(self, num_tokens: int, seconds: float) -> None:
        """A step has run `num_tokens` through the model in `seconds`. The first ones count as much as each other."""
        if num_tokens >= _MIN_TOKENS and seconds > 0:
            self.num_prefills += 1
            weight = max(_WEIGHT, 1 / self.num_prefills)
            self.prefill_tokens_per_s += weight * (num_tokens / seconds - self.prefill_tokens_per_s)


class Room(enum.Enum):
    """The result of making room for a running group's next tokens.

    GONE: the group itself was preempted or ended. BLOCKED: a group must be preempted, but steps in flight use it.
    """

    OK = enum.auto()
    GONE = enum.auto()
    BLOCKED = enum.auto()


class PreemptionPolicy:
    """Chooses for one group at a time, and counts its choices by reason.

    Args:
        block_bytes: of one KV block.
        speeds: mode 'auto' needs them.
    """

    def __init__(self, mode: PreemptionMode = "recompute", block_bytes: int = 0, speeds: Speeds | None = None):
        self.mode = mode
        self.block_bytes = block_bytes
        self.speeds = speeds
        self.counts: Counter[tuple[str, str]] = Counter()

    @property
    def num_preemptions(self) -> int:
        """Since the start."""
        return self.counts.total()

    def choose(self, can_swap_out: bool, num_blocks: int, num_computed_tokens: int) -> Action:
        """The choice for a group that holds `num_blocks` blocks and would recompute `num_computed_tokens` tokens."""
        action, reason = self._decide(can_swap_out, num_blocks, num_computed_tokens)
        self.counts[action, reason] += 1
        return action

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """Correct the speeds that mode 'auto' compares."""
        if self.speeds is not None:
            num_moved = len(plan.blocks_to_swap_out) + len(plan.blocks_to_swap_in)
            self.speeds.observe_copy(num_moved, self.block_bytes, result.swap_s)
            self.speeds.observe_compute(plan.num_tokens, result.compute_s)

    def _decide(self, can_swap_out: bool, num_blocks: int, num_computed_tokens: int) -> tuple[Action, str]:
        if self.mode == "recompute":
            return "recompute", "mode"
        if not can_swap_out:
            return "recompute", "host_pool_full"
        if self.mode == "swap" or self.speeds is None:
            return "swap", "mode"
        if not self.speeds.prefill_tokens_per_s:  # only short steps so far, so there is little to move
            return "swap", "cheaper"
        swap_s = 2 * num_blocks * self.block_bytes / self.speeds.copy_bytes_per_s
        recompute_s = num_computed_tokens / self.speeds.prefill_tokens_per_s
        return ("swap", "cheaper") if swap_s < recompute_s else ("recompute", "cheaper")
