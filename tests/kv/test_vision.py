"""Hashes of blocks that show pictures, and which rows of pictures the workers keep."""

import random

from lullm.kv.hashing import BlockHashes
from lullm.kv.vision.ledger import TileLedger
from lullm.types.sequence import Sequence
from lullm.types.vision.tile import RowGeometry, Tile, TilePlace, num_at_once, num_with_whole_tiles, shown_tiles

TILES = [Tile.of(1, 1, bytes([n, 0, 0])) for n in range(12)]


def test_a_tile_is_named_by_its_shape_and_pixels():
    pixels = bytes(range(24))
    tiles = [Tile.of(2, 4, pixels), Tile.of(4, 2, pixels), Tile.of(1, 8, pixels), Tile.of(2, 4, pixels[::-1])]
    assert len({tile.digest for tile in tiles}) == 4 and Tile.of(2, 4, pixels) == tiles[0]


def hashes_of(tiles, num_tokens=64):
    hashes = BlockHashes(4, tiles=tiles)
    hashes.extend([3] * num_tokens, num_tokens // 4)
    return [hashes[n] for n in range(num_tokens // 4)]


def test_a_hash_covers_the_tiles_that_its_block_shows():
    first = hashes_of([TilePlace(TILES[0], 6, 20), TilePlace(TILES[1], 30, 4)])
    assert hashes_of([TilePlace(TILES[0], 6, 20), TilePlace(TILES[1], 30, 4)]) == first
    plain = hashes_of([])
    assert first[0] == plain[0] and first[1] != plain[1]
    for other, num_equal in (
        ([TilePlace(TILES[2], 6, 20), TilePlace(TILES[1], 30, 4)], 1),
        ([TilePlace(TILES[0], 6, 20), TilePlace(TILES[2], 30, 4)], 7),
        ([TilePlace(TILES[0], 7, 20), TilePlace(TILES[1], 30, 4)], 1),
        ([TilePlace(TILES[0], 6, 20), TilePlace(TILES[1], 31, 4)], 7),
    ):
        found = hashes_of(other)
        assert [one == two for one, two in zip(first, found, strict=True)] == [True] * num_equal + [False] * (
            16 - num_equal
        )
    copy = BlockHashes(4, tiles=[TilePlace(TILES[0], 6, 20), TilePlace(TILES[1], 30, 4)]).copy()
    copy.extend([3] * 64, 16)
    assert [copy[n] for n in range(16)] == first


def test_shown_tiles():
    places = [TilePlace(TILES[0], 2, 3), TilePlace(TILES[1], 5, 3), TilePlace(TILES[2], 10, 3)]
    for start in range(15):
        for end in range(start + 1, 16):
            expected = [place for place in places if place.start < end and place.end > start]
            assert list(shown_tiles(places, start, end)) == expected


def test_random_workloads():
    """A worker that keeps what the plans say has each row that a span shows; and never many more than the capacity."""
    rng = random.Random(1)
    ledger, rows, seqs, num_sent = TileLedger(), {}, [], 0
    for step in range(3000):
        if rng.random() < 0.4 and len(seqs) < 5:
            places, end = [], rng.randint(0, 5)
            for _ in range(rng.randint(1, 4)):
                number = rng.randrange(len(TILES))
                places.append(TilePlace(TILES[number], end, 6, RowGeometry(number % 4)))
                end += 6 + rng.randint(0, 3)
            seqs.append([Sequence(step, 0, [3] * (end + 4), end, tiles=tuple(places)), 0])
        if rng.random() < 0.01:
            ledger.forget()
            if rng.random() < 0.5:  # a sleep
                rows.clear()
        shown, in_plan = [], set()
        for entry in seqs:
            seq, start = entry
            end = min(start + rng.randint(1, 9), len(seq))
            spans = ledger.show(seq, start, end)
            shown += spans
            in_plan |= {one.digest for one in spans}
            places = {p.tile.digest: p for p in seq.tiles}
            covered = sum(one.num_rows for one in spans)
            assert all(one.geometry == places[one.digest].geometry for one in spans)
            assert covered == sum(p.start <= pos < p.end for p in seq.tiles for pos in range(start, end))
            assert all(places[one.digest].num_rows >= one.first + one.num_rows for one in spans)
            entry[1] = 0 if rng.random() < 0.05 else end  # preempted
        if seqs:
            sent, dropped = ledger.take(capacity=20)
            for digest in dropped:
                rows.pop(digest, None)
            rows |= {tile.digest: 6 for tile in sent}
            num_sent += len(sent)
            assert in_plan <= rows.keys() and set(ledger._kept) == rows.keys()
            assert sum(rows.values()) <= max(20, 6 * len(in_plan))
        seqs = [entry for entry in seqs if entry[1] < len(entry[0])]
    assert num_sent > 100


def test_steps_hold_whole_pictures_whose_rows_see_each_other():
    places = [
        TilePlace(TILES[0], 2, 3, RowGeometry(is_mutual=True)),
        TilePlace(TILES[1], 5, 4, RowGeometry(is_mutual=True)),
    ]
    places.append(TilePlace(TILES[2], 12, 5))
    owner = [None, None, 0, 0, 0, 1, 1, 1, 1, *[None] * 11]
    for start in range(18):
        for num_tokens in range(1, 20 - start):
            end = start + num_tokens
            while end > start and owner[end - 1] is not None and owner[end] == owner[end - 1]:
                end -= 1
            assert num_with_whole_tiles(places, start, num_tokens) == end - start
        least = next(n for n in range(1, 9) if num_with_whole_tiles(places, start, n) == n)
        assert num_at_once(places, start) == least
