"""Tiles: what a vision tower or an encoder reads at once, their places in a prompt, and what of them a step shows.

A picture is one tile or several (`lullm.vision`). A tile takes the places of consecutive tokens of a prompt, as many as
its shape gives. In some models a token of text stands behind each line of its rows, and counts as one of them.

Tokens have the positions 0, 1, 2, ... of a text. In a model with planes of positions (`VisionConfig.axes`) the rows of
a picture have three each: the one where it begins, to which the second adds their line in it, the third their column.
The text behind goes on after the largest of them, so its positions are less than its places in the prompt, by a shift.

A video is several tiles, each of the frames that a tower reads at once. Where no words stand between them, they begin
at the same position, and to the first of the three the time of their frames is added (`RowGeometry.time`).

In some models the rows of a tile see each other, whatever their order (`VisionConfig.is_mutual`). Their keys must all
be there before one of them looks, so a step has all rows of a tile that are not computed yet, or none.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from lullm.types.vision.given import GivenRows
from lullm.types.vision.grid import SquareGrid

EDGE_FRAMES = 2
"""Frames behind those of a window that a decoder hears: convolutions at its end see them. Behind a whole one: zeros."""


class Tile(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A rectangle of a picture. `digest`: its name, a hash of shape and pixels. `pixels`: RGB, `[height, width, 3]`.

    `num_frames`: pictures of a film, `[num_frames, height, width, 3]`, that the tower reads at once; 0: a still one.

    Others hold numbers of 4 bytes, `[height, width]`: float32 features of a sound, or of a window of it with
    EDGE_FRAMES behind, a row per mel band (`lullm.audio.features`); or for an encoder, one row of int32 token ids.

    `grid`: the pixels are those of squares below each other, which the tower reads one by one: the whole picture, then
    a grid of its parts, line by line. Or the grid's own, with borders, if the picture stands in its corner.

    `is_beside_pictures`: of a sound in a prompt with pictures, if the model makes other rows of it there.
    """

    digest: bytes
    height: int
    width: int
    pixels: bytes
    grid: SquareGrid | None = None
    num_frames: int = 0
    is_beside_pictures: bool = False

    @classmethod
    def of(cls, height: int, width: int, pixels: bytes, grid: SquareGrid | None = None, num_frames: int = 0) -> "Tile":
        """The tile of these pixels. The digest is cryptographic, since caches are shared by it."""
        shape = height.to_bytes(4, "little") + width.to_bytes(4, "little")
        kind = b"lullm-frames" if num_frames else b"" if grid is None else b"lullm-grid"
        digest = hashlib.blake2b(shape + pixels, digest_size=16, person=kind)
        if grid is not None:
            digest.update(b"".join(number.to_bytes(4, "little") for number in msgspec.structs.astuple(grid)))
        if num_frames:
            digest.update(num_frames.to_bytes(4, "little"))
        return cls(digest.digest(), height, width, pixels, grid, num_frames)

    def beside_pictures(self) -> "Tile":
        """The same sound, in a prompt with pictures."""
        digest = hashlib.blake2b(self.digest, digest_size=16, person=b"lullm-beside").digest()
        return msgspec.structs.replace(self, digest=digest, is_beside_pictures=True)

    @property
    def holds_features(self) -> bool:
        """Whether it holds numbers of 4 bytes, not pixels, which have 3."""
        return len(self.pixels) == 4 * self.height * self.width

    @property
    def shape(self) -> "TileShape":
        return self.height, self.width, self.grid

    def __repr__(self) -> str:
        return f"Tile({self.digest.hex()}, {self.height}, {self.width})"


TileShape = tuple[int, int, SquareGrid | None]
"""(height, width, grid) of a tile."""


class RowGeometry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the rows of a tile lie in the prompt.

    Attributes:
        num_columns: rows in a line of the picture, if they have planes of positions; 0: positions run on as in a text.
        is_mutual: the rows see each other.
        line_len: the last of every `line_len` rows is a token of text; 0: none is.
        time: added to the first of the three positions.
        goes_on: the next tile belongs to the same video and begins at the same position.
    """

    num_columns: int = 0
    is_mutual: bool = False
    line_len: int = 0
    time: int = 0
    goes_on: bool = False

    def shift_behind(self, num_rows: int) -> int:
        """The shift of the positions behind the tile's first `num_rows` rows."""
        if not self.num_columns:
            return 0
        if self.goes_on:
            return -num_rows
        return max(self.num_columns, -(-num_rows // self.num_columns), self.time + 1) - num_rows


AS_TEXT = RowGeometry()
"""Rows with the positions of a text, each of which sees those before it."""


class TilePlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tile, or given rows, in place of the prompt's tokens `start` .. `start` + `num_rows` - 1."""

    tile: Tile | GivenRows
    start: int
    num_rows: int
    geometry: RowGeometry = AS_TEXT

    @property
    def end(self) -> int:
        return self.start + self.num_rows


class TileRows(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows of a tile, or given ones, in a span: `num_rows` of them from `first` on, from the span's row `row` on."""

    digest: bytes
    row: int
    first: int
    num_rows: int
    geometry: RowGeometry = AS_TEXT

    def of_tower(self) -> Iterator[tuple[int, int, int]]:
        """(row of the span, first row that the tower has computed, their number): without the tokens of text."""
        first, end = self.first, self.first + self.num_rows
        line_len = self.geometry.line_len or end + 1
        while first < end:
            line, place = divmod(first, line_len)
            line_end = (line + 1) * line_len
            num_rows = min(end, line_end - 1) - first
            if num_rows > 0:
                yield self.row + first - self.first, line * (line_len - 1) + place, num_rows
            first = line_end


def shown_tiles(places: Sequence[TilePlace], start: int, end: int) -> Iterator[TilePlace]:
    """The tiles that have rows at positions `start` .. `end` - 1. `places` are in the order of the prompt."""
    number = bisect_right(places, start, key=lambda place: place.end)
    while number < len(places) and places[number].start < end:
        yield places[number]
        number += 1


def without_given(token_ids: Sequence[int], places: Sequence[TilePlace]) -> list[int]:
    """The ids of a sequence, without those in place of given rows."""
    kept: list[int] = []
    start = 0
    for place in places:
        if isinstance(place.tile, GivenRows):
            kept += token_ids[start : place.start]
            start = place.end
    return kept + list(token_ids[start:])


def num_with_whole_tiles(places: Sequence[TilePlace], start: int, num_tokens: int) -> int:
    """The most of the next `num_tokens` tokens, from `start` on, that do not end within rows that see each other."""
    end = start + num_tokens
    for place in shown_tiles(places, end - 1, end):
        if place.geometry.is_mutual and end < place.end:
            return max(place.start - start, 0)
    return num_tokens


def num_at_once(places: Sequence[TilePlace], start: int) -> int:
    """The fewest tokens from `start` on that a step may compute."""
    return max(
        (place.end - start for place in shown_tiles(places, start, start + 1) if place.geometry.is_mutual), default=1
    )


def shift_at(places: Sequence[TilePlace], start: int) -> int:
    """The shift of the position of the token `start`; within a tile, that at its beginning."""
    return sum(place.geometry.shift_behind(place.num_rows) for place in places if place.end <= start)
