"""Thoughts among tokens: the counter and the budget, against a plain state machine."""

import random

import numpy as np
import pytest

from lullm.text.reply.thinking import ThinkingCounter, forced_id
from lullm.types.draw import ThinkingBudget
from lullm.types.reply.rules import ThinkingTokens

MARKS = [((1,), (2,)), ((1, 1), (2, 3)), ((3, 1), (1, 2, 1))]


def forced_step_by_step(budget, ids):
    """(the forced token, how many tokens were thought with), by looking at one token after the other."""
    inside, since, used = budget.begins_inside, [], 0
    for token_id in ids:
        since.append(token_id)
        mark = budget.close_ids if inside else budget.open_ids
        if tuple(since[-len(mark) :]) == mark:
            used += len(since) - len(mark) if inside else 0
            inside, since = not inside, []
    if not inside:
        return None, used
    excess = len(since) - max(budget.num_tokens - used, 0)
    return (budget.close_ids[excess % len(budget.close_ids)] if excess >= 0 else None), used + len(since)


@pytest.mark.parametrize("marks", MARKS)
def test_random_tokens(marks):
    rng = random.Random(3)
    for _ in range(300):
        budget = ThinkingBudget(*marks, rng.random() < 0.5, rng.randrange(12))
        ids = [rng.randrange(5) for _ in range(rng.randrange(30))]
        forced, num_thinking = forced_step_by_step(budget, ids)
        assert forced_id(budget, np.array(ids, np.int32)) == forced
        counter = ThinkingCounter(ThinkingTokens(*marks, budget.begins_inside))
        while ids:
            cut = rng.randrange(1, 6)
            counter.feed(ids[:cut])
            ids = ids[cut:]
        assert counter.num_tokens == num_thinking


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("begins_inside", [True, False])
@pytest.mark.parametrize("num_tokens", [0, 1, 7])
def test_a_model_that_never_ends(marks, begins_inside, num_tokens):
    """It gets so many tokens, then the mark, and is free."""
    budget, ids = ThinkingBudget(*marks, begins_inside, num_tokens), []
    opening = [] if begins_inside else list(marks[0])
    for step in range(40):
        forced = forced_id(budget, np.array(ids, np.int32))
        ids.append(forced if forced is not None else opening[step] if step < len(opening) else 4)
    assert ids == opening + ([4] * num_tokens + list(marks[1]) + [4] * 40)[: 40 - len(opening)]
