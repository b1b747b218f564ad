"""Rows of pictures that see each other, against attention with the mask written out."""

import random

import pytest
import torch

from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS
from lullm.step.batch import MutualPlace
from lullm.step.vision.mutual import mutual_rows

HEADS, KV_HEADS, SIZE = 4, 2, 16


def plain(q, keys, values, seen):
    """`q [R, Hq, D]`; `keys`, `values [L, Hkv, D]`; `seen [R, L]`: which keys a row sees."""
    keys, values = (side.repeat_interleave(HEADS // KV_HEADS, 1) for side in (keys, values))
    scores = torch.einsum("rhd,lhd->hrl", q, keys) * SIZE**-0.5
    return torch.einsum("hrl,lhd->rhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values)


@pytest.mark.parametrize("ops", [REFERENCE_OPS, TORCH_CPU_OPS, NATIVE_CPU_OPS], ids=["reference", "torch", "native"])
@pytest.mark.parametrize("window", [None, 3, 10, 40, 500])
def test_as_a_mask(ops, window):
    """Pictures of several spans, whole or behind a cached beginning; what no row sees is NaN or has no block."""
    rng, generator = random.Random(window or 0), torch.Generator().manual_seed(window or 0)
    block_size, spans, places, expected = 8, [], [], {}
    ids = list(range(200))
    rng.shuffle(ids)
    sides = [torch.full((200, block_size, KV_HEADS, SIZE), float("nan")) for _ in range(2)]
    tables = torch.full((5, 24), -(10**9))
    first_row = 0
    for span in range(5):
        start = rng.choice([0, 0, 7, 50, 61])
        length = rng.randint(12, 70)
        end = start + length
        first_seen = 0 if window is None else max(start - window + 1, 0)
        for block in range(first_seen // block_size, -(-end // block_size)):
            tables[span, block] = ids.pop()
        slots = torch.tensor([int(tables[span, p // block_size]) * block_size + p % block_size
                              for p in range(first_seen, end)])  # fmt: skip
        keys, values = (torch.randn(end, KV_HEADS, SIZE, generator=generator) for _ in range(2))
        for side, rows in zip(sides, (keys, values), strict=True):
            side.view(-1, KV_HEADS, SIZE)[slots] = rows[first_seen:]
        spans.append((length, end))
        at = rng.choice([0, 1, 4])
        while at + 9 < length:
            num_rows = rng.choice([2, 9])
            place = MutualPlace(span, first_row + at, num_rows, start + at + num_rows)
            places.append(place)
            rows, seen = torch.arange(start + at, place.end)[:, None], torch.arange(end)[None]
            mask = (seen < place.end) & (seen > rows - (window or 1000))
            expected[len(places) - 1] = (keys, values, mask)
            at += num_rows + rng.choice([0, 2, 20])
        first_row += length
    lens, ends = zip(*spans, strict=True)
    layout = DeviceLayout(
        torch.tensor([0, *lens]).cumsum(0), torch.tensor(ends), tables, torch.zeros(first_row, dtype=torch.int64),
        torch.zeros(0, dtype=torch.int32), block_size, max(lens), max(ends), first_row, 5, window,
    )  # fmt: skip
    q = torch.randn(first_row, HEADS, SIZE, generator=generator)
    cache = LayerCache(*sides)
    state = DeviceLayout(*[layout.query_starts] * 3, layout.slot_mapping, layout.semaphores, 1, 1, 1, is_state=True)
    found, none = mutual_rows([layout, state], places, ops)
    assert none == [] and len(found) == len(places) > 5
    out = torch.zeros(q.shape)
    for number, rows in enumerate(found):
        rows.attend(out, q, cache, ops, CausalScores(SIZE**-0.5))
        torch.testing.assert_close(out[rows.rows], plain(q[rows.rows], *expected[number]), atol=2e-6, rtol=1e-5)
    touched = torch.zeros(first_row, dtype=torch.bool)
    for place in places:
        touched[place.first : place.first + place.num_rows] = True
    assert not out[~touched].any()
