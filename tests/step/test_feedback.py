"""TokenFeedback: a pending token is the newest that a step in flight has drawn for its sequence."""

import numpy as np
import pytest
import torch
from kit.sched.plans import new_draw, new_span

from lullm.step.feedback import TokenFeedback
from lullm.types.step import NO_TOKEN, PENDING_TOKEN, StepPlan


def plan_of(*spans: tuple[int, list[int]]) -> tuple[StepPlan, np.ndarray]:
    """A plan with (sequence, its tokens), and all tokens."""
    plan = StepPlan([new_span(seq_id, 0, token_ids, [0]) for seq_id, token_ids in spans])
    return plan, np.array([token_id for _, token_ids in spans for token_id in token_ids])


def draws_of(*seq_ids: int):
    return [new_draw(seq_id) for seq_id in seq_ids]


def test_pending_tokens_come_from_the_step_before():
    feedback = TokenFeedback(1, 4, torch.device("cpu"))
    feedback.take(torch.tensor([70, NO_TOKEN, 50]), feedback.expect(draws_of(8, 3, 5)))
    plan, token_ids = plan_of((5, [PENDING_TOKEN]), (1, [1, 2]), (8, [9, PENDING_TOKEN]))
    sources = feedback.sources(plan, token_ids)
    assert sources.tolist() == [2, -1, -1, -1, 0]
    filled = feedback.fill_in(torch.from_numpy(token_ids), torch.from_numpy(sources))
    assert filled.tolist() == [50, 1, 2, 9, 70]
    assert feedback.sources(*plan_of((1, [1, 2]))) is None
    feedback.expect(draws_of(8))
    with pytest.raises(KeyError):  # not in the last step: there is no token of it to fill in
        feedback.sources(*plan_of((5, [PENDING_TOKEN])))
    assert feedback.tokens[1] == 0, "what was not drawn becomes a token that can be looked up"


def test_of_several_steps_the_newest_token_counts():
    feedback = TokenFeedback(2, 3, torch.device("cpu"))
    places = [feedback.expect(draws_of(7, 8)), feedback.expect(draws_of(8))]
    assert sorted(places) == [0, 3], "each step has places of its own"
    plan, token_ids = plan_of((7, [PENDING_TOKEN]), (8, [PENDING_TOKEN]))
    sources = feedback.sources(plan, token_ids)
    for place, tokens in zip(places, ([17, 18], [28]), strict=True):  # the steps run later, in order
        feedback.take(torch.tensor(tokens), place)
    filled = feedback.fill_in(torch.from_numpy(token_ids), torch.from_numpy(sources))
    assert filled.tolist() == [17, 28]
    assert feedback.expect(draws_of(9)) == places[0], "the oldest step gives its places"
    with pytest.raises(KeyError):
        feedback.sources(*plan_of((7, [PENDING_TOKEN])))
    assert feedback.sources(*plan_of((8, [PENDING_TOKEN]))).tolist() == [places[1]]
