"""Log-probabilities in arrays, which read like a list of dicts."""

import copy
import math
import pickle

import pytest

from lullm.types.outputs import CompletionOutput, Logprob, LogprobList, LogprobRows, RequestMetrics, RequestOutput

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


def delta(completions, finished=False, prompt_logprobs=None):
    metrics = RequestMetrics(1.0, finished_time=2.0 if finished else None)
    return RequestOutput("r", "ask", [1], completions, finished, metrics, int(finished), prompt_logprobs)


def piece(index, text, row, reason=None):
    found = LogprobRows()
    found.append(row)
    return CompletionOutput(index, text, [row[0][0]], row[0][1], LogprobList(found, range(1), "<{}>".format), reason)


def test_deltas_in_a_row_become_one():
    output = delta([piece(0, "a", ROWS[0])], prompt_logprobs=[None])
    output.absorb(delta([piece(1, "b", ROWS[1]), piece(0, "c", ROWS[2])]))
    output.absorb(delta([piece(1, "d", ROWS[0], "stop")], finished=True))
    first, second = output.outputs
    assert (first.index, first.text, first.token_ids, first.finish_reason) == (0, "ac", [5, 9], None)
    assert (second.index, second.text, second.token_ids, second.finish_reason) == (1, "bd", [1, 5], "stop")
    assert first.logprobs == [DICTS[0], DICTS[2]] and second.logprobs == [DICTS[1], DICTS[0]]
    assert (first.cumulative_logprob, second.cumulative_logprob) == (-math.inf, -1.5)
    assert output.finished and output.metrics.finished_time == 2.0 and output.prompt_logprobs == [None]
