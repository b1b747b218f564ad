"""Log-probabilities in arrays, which read like a list of dicts."""

import copy
import math
import pickle

import pytest

from lullm.types.outputs import CompletionOutput, Logprob, LogprobList, LogprobRows

ROWS = [((5, -1.5, 2), (7, -0.25, 1)), ((1, -0.125, 1),), ((9, -math.inf, 3), (0, -0.5, 1), (2, -1.0, 2))]
DICTS = [
    {5: Logprob(-1.5, 2, "<5>"), 7: Logprob(-0.25, 1, "<7>")},
    {1: Logprob(-0.125, 1, "<1>")},
    {9: Logprob(-math.inf, 3, "<9>"), 0: Logprob(-0.5, 1, "<0>"), 2: Logprob(-1.0, 2, "<2>")},
]


def rows() -> LogprobRows:
    found = LogprobRows()
    found.extend(ROWS)
    return found


@pytest.fixture
def logprobs() -> LogprobList:
    return LogprobList(rows(), range(3), "<{}>".format)


def test_rows_come_back():
    found = rows()
    assert list(found) == ROWS and len(found) == 3
    found.clear()
    found.append(ROWS[1])
    assert list(found) == ROWS[1:2]


def test_positions_are_dicts_with_the_chosen_token_first(logprobs):
    assert len(logprobs) == 3 and list(logprobs) == DICTS and repr(logprobs) == repr(DICTS)
    assert next(iter(logprobs[2])) == 9 and logprobs[-1] == DICTS[2]
    assert logprobs[0][7].logprob == -0.25 and logprobs[0][7].rank == 1 and logprobs[0][7].decoded_token == "<7>"
    for place in (3, -4):
        with pytest.raises(IndexError):
            logprobs[place]


def test_it_equals_a_list_and_joins_with_lists(logprobs):
    assert logprobs == DICTS and [*DICTS] == logprobs and logprobs == LogprobList(rows(), range(3), "<{}>".format)
    assert logprobs != DICTS[:2] and logprobs != [*DICTS[:2], DICTS[0]] and logprobs != 3
    assert logprobs[1:] == DICTS[1:] and logprobs[::-1] == DICTS[::-1] and logprobs[1:][0] == DICTS[1]
    assert logprobs + [None] == [*DICTS, None] and [None] + logprobs == [None, *DICTS]
    assert logprobs + logprobs == DICTS * 2


def test_a_prompts_first_position_is_none():
    prompt = LogprobList(rows(), range(-1, 3), "<{}>".format)
    assert prompt == [None, *DICTS] and prompt[1:] == DICTS and prompt[:1] == [None]


def test_later_positions_do_not_show():
    growing = rows()
    before = LogprobList(growing, range(len(growing)), "<{}>".format)
    growing.append(ROWS[0])
    assert before == DICTS


@pytest.mark.parametrize("duplicate", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
def test_outputs_with_them_pickle_and_copy(logprobs, duplicate):
    output = CompletionOutput(0, "x", [5, 1, 9], -3.0, logprobs)
    assert duplicate(output) == output and type(duplicate(output).logprobs) is list


def test_an_entry_takes_twelve_bytes():
    found = LogprobRows()
    for _ in range(10_000):
        found.append(tuple((token_id, -1.0, token_id) for token_id in range(21)))
    num_bytes = sum(getattr(found, name).__sizeof__() for name in LogprobRows.__slots__)
    assert num_bytes < 10_000 * (21 * 12 + 8) * 1.2
