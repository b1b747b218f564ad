"""Plans and results as bytes: every field comes back as it was."""

import math
import struct

import msgspec
import pytest

from lullm.types.draw import Draw, DrawParams, LogitEdits, ThinkingBudget
from lullm.types.guided.rules import TimestampRules, TokenRules
from lullm.types.packed import num_packed, pack, pack_one, unpack
from lullm.types.step import NO_TOKEN, PENDING_TOKEN, DrawnToken, PooledPart, Span, StepPlan, StepResult
from lullm.types.step_codec import decode_plan, decode_result, encode_plan, encode_result
from lullm.types.vision.given import GivenRows
from lullm.types.vision.tile import RowGeometry, Tile, TileRows

EDITS = LogitEdits(
    presence_penalty=-0.5,
    frequency_penalty=1e-300,
    repetition_penalty=1.3,
    min_tokens=2,
    end_token_ids=(7, 8),
    bad_words_ids=((1,), (2, 3)),
    logit_bias={5: -100.0, 151_935: 0.1},
    allowed_token_ids=(),
    thinking=ThinkingBudget((1, 2), (3,), True, 7),
    rules=TokenRules((4,), (5, 6), TimestampRules(9, 8, 3)),
)
PARAMS = DrawParams(2**64 - 1, 3, 0.7, 50, 0.9, 0.1, 0, EDITS)


def test_a_plan():
    draws = (Draw(9, 1, PARAMS, 4, pack([5, 6, 7])), Draw(9, 2, DrawParams(seed=-(2**63))))
    plan = StepPlan(
        [
            Span(9, 30, pack([4, PENDING_TOKEN]), (pack([0, -1, 2**31 - 1]), pack([])), draws),
            Span(2, 0, pack([151_935]), (pack([3]),), (), pack([6]), 5),
            Span(4, 8, pack([1, 2]), (pack([5]),), pooled_rows=(0, 2), sums_pooled=False),
            Span(5, 8, pack([1, 2]), (pack([5]),), tiles=(TileRows(b"a" * 16, 0, 7, 1), TileRows(b"b" * 16, 1, 0, 1))),
            Span(6, 8, pack([1]), (pack([5]),), tiles=(TileRows(b"a" * 16, 0, 7, 1, RowGeometry(4)),), shift=-12),
        ],
        [(1, 2)],
        [(3, 4), (5, 6)],
        [(7, 8)],
        [(0, 3)],
        [Span(9, 29, pack([4]), (pack([0]),), draws[:1])],
        [
            Tile.of(2, 2, bytes(range(12))),
            GivenRows.of(2, "float16", bytes(range(12))),
            Tile.of(1, 4, bytes(range(12))),
        ],
        [b"c" * 16],
    )
    received = decode_plan(encode_plan(plan))
    assert received == plan and repr(received) == repr(plan), "types, too"
    assert decode_plan(encode_plan(StepPlan([]))).is_empty
    assert [span.end for span in received.spans] == [32, 1, 10, 10, 9] and received.num_tokens == 8


def test_a_result():
    result = StepResult(
        [DrawnToken(9, 5, ((5, -math.inf, 4), (6, -1e-17, 1))), DrawnToken(2**40, NO_TOKEN)],
        {9: [((1, -0.5, 1),), ()]},
        0.25,
        1e-9,
        [PooledPart(3, 2, struct.pack("2f", -math.inf, 0.5))],
    )
    received = decode_result(encode_result(result))
    assert received == result and repr(received) == repr(result)


def test_bytes_that_are_no_plan():
    with pytest.raises(msgspec.DecodeError):
        decode_plan(b"\xc1")
    with pytest.raises(msgspec.ValidationError):
        decode_plan(encode_result(StepResult([DrawnToken(1, 2)])))


def test_packed_integers():
    numbers = [0, -1, PENDING_TOKEN, 2**31 - 1, -(2**31)]
    assert unpack(pack(numbers)) == numbers and num_packed(pack(numbers)) == 5
    assert unpack(pack(range(3))) == [0, 1, 2] and unpack(b"") == []
    assert [pack_one(number) for number in numbers] == [pack([number]) for number in numbers]
    with pytest.raises(OverflowError):
        pack([2**31])
    with pytest.raises(struct.error):
        pack_one(2**31)
