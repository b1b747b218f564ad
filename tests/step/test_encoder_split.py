"""An encoder's rows are taken out of a plan: the texts behind them are plain, and every row has its slot."""

import random

import numpy as np

from lullm.step.encoder.split import split_plan
from lullm.types.draw import Draw, DrawParams
from lullm.types.packed import pack, unpack
from lullm.types.step import Span, StepPlan
from lullm.types.vision.tile import TileRows

BLOCK_SIZE = 4


def span_of(seq_id, num_rows, start, tokens, block_ids, draws=()):
    """A span of a sequence whose encoder has `num_rows` rows."""
    shown = [TileRows(b"a", 0, start, min(num_rows, start + len(tokens)) - start)] if start < num_rows else []
    return Span(seq_id, start, pack(tokens), (pack(block_ids),), draws, tiles=tuple(shown), num_encoder_rows=num_rows)


def test_a_whole_prompt_behind_its_rows():
    draw = Draw(7, 9, DrawParams())
    plan, writes = split_plan(StepPlan([span_of(7, 6, 0, [0] * 8 + [5, 6], [9, 3, 4], (draw,))]), BLOCK_SIZE)
    [span] = plan.spans
    assert (span.start, unpack(span.token_ids), span.num_encoder_rows) == (0, [5, 6], 6)
    assert list(map(unpack, span.block_ids)) == [[4], [9, 3]]
    assert [one.row for one in span.draws] == [1]
    assert writes.slots.tolist() == [36, 37, 38, 39, 12, 13]


def test_random_chunks_write_every_row_once_and_leave_the_text():
    chance = random.Random(3)
    for _ in range(200):
        num_rows = chance.randint(1, 20)
        num_slots = -(-num_rows // BLOCK_SIZE) * BLOCK_SIZE
        text = [chance.randrange(100) for _ in range(chance.randint(1, 12))]
        tokens = [0] * num_slots + text
        ids = chance.sample(range(50), -(-len(tokens) // BLOCK_SIZE))
        start, written, seen = 0, [], []
        while start < len(tokens):
            end = min(start + chance.randint(1, 9), len(tokens))
            plan, writes = split_plan(StepPlan([span_of(0, num_rows, start, tokens[start:end], ids)]), BLOCK_SIZE)
            assert sum(rows.num_rows for rows in writes.rows) == len(writes.slots)
            written += writes.slots.tolist()
            for span in plan.spans:
                assert span.start == len(seen) and not span.tiles
                assert list(map(unpack, span.block_ids)) == [
                    ids[num_slots // BLOCK_SIZE :], ids[: num_slots // BLOCK_SIZE],
                ]  # fmt: skip
                seen += unpack(span.token_ids)
            assert bool(plan.spans) == (end > num_slots)
            start = end
        assert seen == text
        places = np.arange(num_rows)
        assert written == (np.array(ids)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE).tolist()
