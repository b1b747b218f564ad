"""BlockMoves: runs a plan's block moves around its compute, and measures the time of both.

A plan's order is swap out, swap in, copy, compute, and the plan may reuse a block. The place of a device block that
goes out may be taken by a block that comes in, by a copy, or by the step's new keys and values. Content that goes out
may come in again for another sequence. All other pairs (device block, host block) do not depend on the rest of the
step. They are most blocks of a preempted group: it gives up all its blocks, and the step needs only the few that were
missing. An accelerator moves independent pairs in parallel with the compute.

Attention of the same step reads the blocks that come in, so they are moved before the compute.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lullm.device.device import Device
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.table import Ops
from lullm.types.packed import unpack
from lullm.types.step import BlockPair, StepPlan

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepMarks:
    """Marks (`Device.mark`) in a step's work; compare them once the work is done."""

    started: Any
    swapped: Any
    ended: Any
    beside: list[Any]
    """Around the blocks that were swapped out beside the compute; empty: none were."""

    def swap_s(self, device: Device) -> float:
        beside_s = device.seconds_between(*self.beside) if self.beside else 0.0
        return device.seconds_between(self.started, self.swapped) + beside_s

    def compute_s(self, device: Device) -> float:
        """Seconds of the compute, copies of blocks included."""
        return device.seconds_between(self.swapped, self.ended)


class CachePools(NamedTuple):
    """The blocks on the device and those in host memory, by the layer-slots of a block."""

    device: list[LayerCache]
    host: list[LayerCache]


class BlockMoves:
    """Moves between and within the two pools of blocks.

    Args:
        state_groups: KV cache groups whose blocks hold recurrent states: a step writes all of them.
    """

    def __init__(self, device: Device, ops: Ops, pools: CachePools, state_groups: Sequence[int] = ()):
        self._device = device
        self._ops = ops
        self._kv_caches, self._host_kv_caches = pools
        self._state_groups = state_groups

    def moving_blocks(
        self, plan: StepPlan, slot_mapping: np.ndarray | None, compute: Callable[[], T]
    ) -> tuple[T, StepMarks]:
        """Run the plan's moves, and `compute` once its blocks are in place. Inside the work of `Device.start`.

        Args:
            slot_mapping: [G, T] slots that the step writes; negative: none. None: there is no compute, and all moves
                run one after the other.
        """
        started = self._device.mark()
        swap_out, swap_out_beside = plan.blocks_to_swap_out, list[BlockPair]()
        if swap_out and slot_mapping is not None and self._device.is_accelerator:
            block_size = self._kv_caches[0].block_size
            swap_out, swap_out_beside = split_swap_out(plan, slot_mapping, block_size, self._state_groups)
        if swap_out:
            self._ops.swap_blocks(self._kv_caches, self._host_kv_caches, swap_out)
        if plan.blocks_to_swap_in:
            self._ops.swap_blocks(self._host_kv_caches, self._kv_caches, plan.blocks_to_swap_in)
        swapped = self._device.mark()
        beside: list[Any] = []
        if swap_out_beside:
            self._device.on_side_stream(lambda: beside.extend(self._swap_out_timed(swap_out_beside)))
        try:
            if plan.blocks_to_copy:
                self._ops.copy_blocks(self._kv_caches, plan.blocks_to_copy)
            outcome = compute()
        finally:
            if swap_out_beside:
                self._device.join_side_stream()
        return outcome, StepMarks(started, swapped, self._device.mark(), beside)

    def _swap_out_timed(self, pairs: list[BlockPair]) -> tuple[Any, Any]:
        started = self._device.mark()
        self._ops.swap_blocks(self._kv_caches, self._host_kv_caches, pairs)
        return started, self._device.mark()


def split_swap_out(
    plan: StepPlan, slot_mapping: np.ndarray, block_size: int, state_groups: Sequence[int] = ()
) -> tuple[list[BlockPair], list[BlockPair]]:
    """Split the plan's pairs to swap out: (those that must go first, those that may go beside the compute).

    Args:
        slot_mapping: [G, T] slots that the step writes; negative: none.
        state_groups: the step writes all blocks of these groups.
    """
    written = {block_id for _, block_id in (*plan.blocks_to_swap_in, *plan.blocks_to_copy)}
    written.update(np.unique(slot_mapping[slot_mapping >= 0] // block_size).tolist())
    written.update(
        block_id for span in plan.spans for group in state_groups for block_id in unpack(span.block_ids[group])
    )
    read = {host_block_id for host_block_id, _ in plan.blocks_to_swap_in}
    first: list[BlockPair] = []
    beside: list[BlockPair] = []
    for pair in plan.blocks_to_swap_out:
        (first if pair[0] in written or pair[1] in read else beside).append(pair)
    return first, beside
