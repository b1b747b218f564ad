"""What a draw takes from its request, and what it leaves behind."""

import pytest
from kit.sched.plans import new_draw

from lullm.types.guided.params import Guide
from lullm.types.packed import unpack


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0, "top_k": 5, "top_p": 0.5, "n": 2, "stop_token_ids": [3]}])
def test_plain_draws_carry_no_edits_and_no_tokens(params):
    draw = new_draw(token_ids=[1, 2, 3], prompt_len=2, end=(9,), **params)
    assert draw.params.edits is None and draw.params.num_logprobs is None and draw.token_ids == b""
    assert draw.output_len == 1 and not draw.params.reads_tokens
    assert draw.params.is_greedy == ("temperature" in params)


@pytest.mark.parametrize(
    ("params", "carried"),
    [
        ({"presence_penalty": 0.1}, [1, 2, 3]),
        ({"frequency_penalty": -0.1}, [1, 2, 3]),
        ({"repetition_penalty": 0.9}, [1, 2, 3]),
        ({"bad": [(1, 2)]}, [3]),
        ({"guide": Guide("g", (9,))}, [3]),
        ({"guide": Guide("g", (9,)), "repetition_penalty": 0.9}, [1, 2, 3]),
        ({"min_tokens": 3}, []),
        ({"logit_bias": {4: 1.0}}, []),
        ({"allowed_token_ids": [4]}, []),
    ],
)
def test_tokens_travel_for_draws_that_read_them(params, carried):
    """A long prompt would be packed again in each step."""
    draw = new_draw(token_ids=[1, 2, 3], prompt_len=2, end=(9,), **params)
    assert draw.params.edits is not None and draw.params.reads_tokens == bool(carried)
    assert unpack(draw.token_ids) == carried


def test_min_tokens_forbids_end_and_stop_tokens():
    assert new_draw(end=(9,), stop_token_ids=[4], min_tokens=1).params.edits.end_token_ids == (9, 4)


@pytest.mark.parametrize(("params", "num"), [({"logprobs": 3}, 3), ({"logprobs": 0}, 0), ({"best_of": 2}, 0)])
def test_log_probabilities(params, num):
    assert new_draw(**params).params.num_logprobs == num
