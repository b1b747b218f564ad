"""Positions of tokens behind and within pictures, against the obvious walk through whole prompts."""

import random

import numpy as np
from kit.sched.plans import new_draw, new_span
from msgspec.structs import replace

from lullm.kv.vision.ledger import TileLedger
from lullm.step.batch import BatchBuilder
from lullm.step.limits import StepLimits
from lullm.types.sequence import Sequence
from lullm.types.step import StepPlan
from lullm.types.vision.tile import RowGeometry, Tile, TilePlace, shift_at

TILE = Tile.of(1, 1, b"rgb")


def positions_of(places, num_tokens):
    """`[3, num_tokens]`, token by token."""
    found, at, begin = [], 0, 0
    for place in places:
        found += [[begin + n] * 3 for n in range(place.start - at)]
        begin += place.start - at
        columns = place.geometry.num_columns
        lines = place.num_rows // columns
        found += [[begin, begin + line, begin + column] for line in range(lines) for column in range(columns)]
        begin += max(lines, columns)
        at = place.end
    return np.array(found + [[begin + n] * 3 for n in range(num_tokens - at)]).T


def random_places(rng):
    """(places, tokens of the prompt). Some pictures have neighbours, and some begin or end the prompt."""
    places, at = [], rng.choice([0, rng.randrange(5)])
    for _ in range(rng.randrange(4)):
        columns, lines = rng.randint(1, 5), rng.randint(1, 5)
        places.append(TilePlace(TILE, at, columns * lines, RowGeometry(columns)))
        at = places[-1].end + rng.choice([0, rng.randrange(5)])
    return places, at + rng.randrange(1, 4)


def test_random_chunks_of_prompts():
    rng, builder = random.Random(0), BatchBuilder(StepLimits(8, 400, 256, 4))
    num_planes = 0
    for _ in range(300):
        spans, expected = [], []
        for seq_id in range(rng.randrange(1, 6)):
            places, length = random_places(rng)
            whole = positions_of(places, length)
            start = rng.randrange(length)
            end = rng.randint(start + 1, length)
            shown = TileLedger().show(Sequence(seq_id, 0, [3] * length, length, tiles=tuple(places)), start, end)
            span = new_span(
                seq_id, start, [3] * (end - start), list(range(64)), [new_draw(seq_id, row=end - start - 1)]
            )
            spans.append(replace(span, tiles=shown, shift=shift_at(places, start)))
            expected.append(whole[:, start:end])
            assert (whole <= np.arange(length)).all()
        batch, expected = builder.build(StepPlan(spans)), np.concatenate(expected, axis=1)
        slots = [position for span in spans for position in range(span.start, span.end)]
        assert batch.slot_mapping.tolist() == [slots]  # by the place in the prompt
        if any(span.tiles for span in spans):
            assert np.array_equal(batch.planes, expected) and not batch.is_decode
            num_planes += 1
        else:
            assert batch.planes is None and np.array_equal(batch.positions, expected[0])
    assert 100 < num_planes < 300


def test_decodes_behind_a_picture():
    builder = BatchBuilder(StepLimits(8, 400, 256, 4))
    decode = replace(new_span(0, 20, [3], list(range(64)), [new_draw()]), shift=-9)
    other = new_span(1, 5, [3], list(range(64)), [new_draw(1)])
    batch = builder.build(StepPlan([decode, other]))
    assert batch.is_decode and batch.planes is None
    assert batch.positions.tolist() == [11, 5] and batch.context_lens.tolist() == [21, 6]
    assert builder.build(StepPlan([other])).positions.tolist() == [5]


def test_pictures_without_planes_do_not_shift():
    places = [TilePlace(TILE, 2, 6), TilePlace(TILE, 8, 6)]
    assert [shift_at(places, start) for start in (0, 5, 8, 20)] == [0] * 4
    shown = TileLedger().show(Sequence(0, 0, [3] * 20, 20, tiles=tuple(places)), 0, 16)
    span = replace(new_span(0, 0, [3] * 16, list(range(64)), [new_draw(row=15)]), tiles=shown)
    assert BatchBuilder(StepLimits(8, 400, 256, 4)).build(StepPlan([span])).planes is None
