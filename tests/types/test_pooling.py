"""Which rows of which span count, what their sum becomes, and how pairs become prompts."""

import struct

import pytest

from lullm.errors import InvalidRequestError, UnsupportedError
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.params import Pooling, PoolingParams
from lullm.types.pooling.rows import PooledRows, activated, finished
from lullm.types.pooling.score import Scoring
from lullm.types.request import TextPair
from lullm.types.vllm_argument import VLLM_POOLING


@pytest.mark.parametrize("name", sorted(VLLM_POOLING))
def test_vllms_other_arguments_pass_or_are_refused(name):
    argument = VLLM_POOLING[name]
    for nothing in (None, argument.default):
        assert PoolingParams(**{name: nothing}) == PoolingParams()
    if not argument.passes:
        with pytest.raises(UnsupportedError) as error:
            PoolingParams(**{name: {"chunk_size": 4}})
        assert argument.advice in str(error.value)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("last", [None, None, (1, 2)]),
        ("cls", [(0, 1), None, None]),
        ("mean", [(0, 4), (0, 3), (0, 2)]),
    ],
)
def test_rows_of_chunks(kind, wanted):
    rows = PooledRows(kind, 9)
    assert rows.first_wanted == (rows.prompt_len - 1 if kind == "last" else 0)
    for (start, end), expected in zip(((0, 4), (4, 7), (7, 9)), wanted, strict=True):
        found = rows.wanted(start, end)
        assert found == expected
        if found is not None:
            rows.add(struct.pack("2f", float(end - start), 1.0), found[1] - found[0])
    assert rows.is_complete and rows.is_finite
    assert rows.mean() == ([1.0, 3 / 9] if kind == "mean" else [2.0 if kind == "last" else 4.0, 1.0])


def test_starting_over():
    rows = PooledRows("mean", 3)
    rows.add(struct.pack("f", 5.0), 2)
    rows.clear()
    rows.add(struct.pack("f", 6.0), 3)
    assert rows.is_complete and rows.mean() == [2.0]
    rows.add(struct.pack("f", float("nan")), 1)
    assert not rows.is_finite


def test_activations():
    assert activated([3.0, 4.0], "normalize") == [0.6, 0.8] and activated([0.0], "normalize") == [0.0]
    assert activated([0.0, 1000.0, -1000.0], "sigmoid") == [0.5, 1.0, 0.0]
    assert activated([1000.0, 1000.0], "softmax") == [0.5, 0.5]
    assert finished([3.0, 4.0, 9.0], Pooling("embed", "last", "normalize", 2)) == [0.6, 0.8]


def test_a_task_is_expected_once():
    assert PoolingParams().expecting("embed").task == "embed" and PoolingParams().expecting(None).task is None
    with pytest.raises(InvalidRequestError, match="the call for 'classify'"):
        PoolingParams(task="embed").expecting("classify")


def vector(name, *data):
    return PoolingRequestOutput(name, PoolingOutput(list(data)), [1, 2], 1)


def test_prompts_and_scores():
    one_to_two = Scoring("a", ["b", "c"], reads_pairs=False)
    assert one_to_two.prompts == ["a", "b", "c"], "the query is embedded once"
    outputs = one_to_two.scores([vector("q", 1.0, 0.0), vector("x", 3.0, 4.0), vector("y", 0.0, 0.0)])
    assert [output.outputs.score for output in outputs] == [0.6, 0.0]
    assert outputs[0].request_id == "q_x" and outputs[0].prompt_token_ids == [1, 2, 1, 2]
    pairs = Scoring(["a", "b"], ("c", "d"), reads_pairs=True, instruction="i")
    assert pairs.prompts == [TextPair("a", "c", "i"), TextPair("b", "d", "i")]
    assert [output.outputs.score for output in pairs.scores([vector("1", 0.5), vector("2", 0.25)])] == [0.5, 0.25]
