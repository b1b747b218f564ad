"""Which blocks of a plan can go to the host pool beside the step's compute, and which must be gone before.

A plan's order is swap out, swap in, copy, compute, and its blocks may be handed on within it: a device block that goes
out may be the place of one that comes in, of a copy, or of the step's new keys and values; content that goes out may be
found on the host and come in again for somebody else. A pair (device block, host block) that is none of this touches
nothing that the rest of the step writes, and nothing that it needs. Most of a preempted group is like that: it gives
all its blocks, and the step takes the few that were missing.

What comes in is read by the same step's attention, so it is never beside its compute.
"""

import numpy as np

from lullm.types.step import BlockPair, StepPlan


def split_swap_out(
    plan: StepPlan, slot_mapping: np.ndarray, block_size: int
) -> tuple[list[BlockPair], list[BlockPair]]:
    """The plan's pairs to swap out: (those that go before all else, those that may go beside it).

    Args:
        slot_mapping: [T] slots that the step writes; negative: none.
    """
    written = {block_id for _, block_id in (*plan.blocks_to_swap_in, *plan.blocks_to_copy)}
    written.update(np.unique(slot_mapping[slot_mapping >= 0] // block_size).tolist())
    read = {host_block_id for host_block_id, _ in plan.blocks_to_swap_in}
    first: list[BlockPair] = []
    beside: list[BlockPair] = []
    for pair in plan.blocks_to_swap_out:
        (first if pair[0] in written or pair[1] in read else beside).append(pair)
    return first, beside
