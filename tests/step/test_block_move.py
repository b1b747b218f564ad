"""Swapping out beside the compute: what may, what may not, and in which order a device is asked."""

import numpy as np
from kit.sched.plans import new_span

from lullm.step.block_move import split_swap_out
from lullm.types.step import StepPlan


def split(swap_out, swap_in=(), copies=(), slots=()):
    plan = StepPlan([new_span(0, 0, [1], [0])], list(swap_out), list(swap_in), list(copies))
    return split_swap_out(plan, np.array(slots, np.int64), 16)


def test_what_nobody_touches_goes_beside():
    assert split([(3, 0), (4, 1)], slots=[16 * 5, -1]) == ([], [(3, 0), (4, 1)])


def test_what_the_step_writes_goes_first():
    out = [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert split(out, swap_in=[(9, 1)]) == ([(1, 0)], out[1:]), "another block comes in there"
    assert split(out, copies=[(7, 2), (3, 8)]) == ([(2, 1)], [out[0], *out[2:]]), "a copy lands there; one may be read"
    assert split(out, slots=[16 * 3 + 15, 16 * 40]) == ([(3, 2)], [*out[:2], out[3]]), "new keys are written there"


def test_what_comes_in_again_goes_first():
    assert split([(1, 0), (2, 5)], swap_in=[(5, 30)]) == ([(2, 5)], [(1, 0)])
