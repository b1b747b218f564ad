"""The two wire forms of log-probabilities."""

import pytest

from lullm.server.openai.logprob import IMPOSSIBLE, chat_logprobs, completion_logprobs, prompt_logprobs
from lullm.types.outputs import Logprob


@pytest.fixture(scope="module")
def tokenizer(scripted):
    return scripted().tokenizer


def test_completion_form(tokenizer):
    a, b, c = tokenizer.encode("abc")
    positions = [None, {b: Logprob(-2.0, 2), c: Logprob(-1.0, 1), a: Logprob(float("-inf"), 3)}]
    form, end = completion_logprobs(tokenizer, [a, b], positions, num_top=2, offset=10)
    assert form == {
        "tokens": ["a", "b"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {"c": -1.0, "b": -2.0}],
        "text_offset": [10, 11],
    }
    assert end == 12
    named, end = completion_logprobs(tokenizer, [a, b], positions, num_top=2, offset=10, as_ids=True)
    assert named == form | {
        "tokens": [f"token_id:{a}", f"token_id:{b}"],
        "top_logprobs": [None, {f"token_id:{c}": -1.0, f"token_id:{b}": -2.0}],
    }
    assert end == 12, "offsets are those of the text"


def test_impossible_tokens_stay_json(tokenizer):
    a, b = tokenizer.encode("ab")
    form, _ = completion_logprobs(tokenizer, [a], [{a: Logprob(-1, 1), b: Logprob(float("-inf"), 2)}], 2, 0)
    assert form["top_logprobs"] == [{"a": -1, "b": IMPOSSIBLE}]


def test_chat_form_leaves_the_chosen_out_of_the_best_when_it_is_not(tokenizer):
    a, b = tokenizer.encode("ab")
    chosen_third = {a: Logprob(-3.0, 3), b: Logprob(-0.5, 1)}
    form = chat_logprobs(tokenizer, [a], [chosen_third], num_top=1)
    assert form["content"] == [
        {
            "token": "a",
            "logprob": -3.0,
            "bytes": [97],
            "top_logprobs": [{"token": "b", "logprob": -0.5, "bytes": [98]}],
        }
    ]
    assert chat_logprobs(tokenizer, [a], [chosen_third], num_top=0)["content"][0]["top_logprobs"] == []


def test_decoded_token_goes_before_the_tokenizer(tokenizer):
    (a,) = tokenizer.encode("a")
    form, _ = completion_logprobs(tokenizer, [a], [{a: Logprob(-1.0, 1, " a")}], 1, 0)
    assert form["tokens"] == [" a"]


def test_prompt_form():
    assert prompt_logprobs(None) is None
    assert prompt_logprobs([None, {5: Logprob(-1.0, 1, "x")}]) == [
        None,
        {"5": {"logprob": -1.0, "rank": 1, "decoded_token": "x"}},
    ]
