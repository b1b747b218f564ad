"""Tiles: the squares that a vision tower reads, their places in a prompt, and what of them a step shows.

A picture is one tile or several (`lullm.vision`). A tile takes the places of consecutive tokens of a prompt, always of
the same number in one model.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec


class Tile(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A square of a picture. `digest`: its name, a hash of size and pixels. `pixels`: RGB bytes, `[size, size, 3]`."""

    digest: bytes
    size: int
    pixels: bytes

    @classmethod
    def of(cls, size: int, pixels: bytes) -> "Tile":
        """The tile of these pixels. The digest is cryptographic, since caches are shared by it."""
        return cls(hashlib.blake2b(size.to_bytes(4, "little") + pixels, digest_size=16).digest(), size, pixels)

    def __repr__(self) -> str:
        return f"Tile({self.digest.hex()}, {self.size})"


class TilePlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tile in place of the prompt's tokens `start` .. `start` + `num_rows` - 1."""

    tile: Tile
    start: int
    num_rows: int

    @property
    def end(self) -> int:
        return self.start + self.num_rows


class TileRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows of a tile in a span: `num_rows` of them from `first` on, in place of the span's rows from `row` on."""

    digest: bytes
    row: int
    first: int
    num_rows: int


def shown_tiles(places: Sequence[TilePlace], start: int, end: int) -> Iterator[TilePlace]:
    """The tiles that have rows at positions `start` .. `end` - 1. `places` are in the order of the prompt."""
    number = bisect_right(places, start, key=lambda place: place.end)
    while number < len(places) and places[number].start < end:
        yield places[number]
        number += 1
