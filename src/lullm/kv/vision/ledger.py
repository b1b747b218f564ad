"""TileLedger: the tiles whose rows the workers keep, so that each is sent and computed once while it is needed."""

from lullm.types.sequence import Sequence
from lullm.types.vision.given import GivenRows
from lullm.types.vision.tile import Tile, TileRows, shown_tiles


class TileLedger:
    """The rows that the workers keep: those of pictures, and those that callers give.

    A sequence whose tile was dropped meanwhile (a preempted one, or one in the middle of a tile) has it sent again.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, int] = {}  # digest -> rows; the one that was used last is the last
        self._num_kept = 0  # rows
        self._shown: set[bytes] = set()  # by the plan that is being made
        self._sent: list[Tile | GivenRows] = []  # with it
        self._forgotten: list[bytes] = []

    def show(self, seq: Sequence, start: int, end: int) -> tuple[TileRows, ...]:
        """The rows of tiles at positions `start` .. `end` - 1 of a sequence. Tiles that workers lack are sent."""
        found = []
        for place in shown_tiles(seq.tiles, start, end):
            digest = place.tile.digest
            if self._kept.pop(digest, None) is None:
                self._sent.append(place.tile)
                self._num_kept += place.num_rows
            self._kept[digest] = place.num_rows
            self._shown.add(digest)
            first, last = max(start, place.start), min(end, place.end)
            rows = first - start, first - place.start, last - first
            found.append(TileRows(digest, *rows, place.geometry))
        return tuple(found)

    def take(self, capacity: int) -> tuple[list[Tile | GivenRows], list[bytes]]:
        """(tiles to send, digests to drop) with the plan that has just been made; it has spans, so it will run.

        Args:
            capacity: rows to keep at most, unless the plan itself shows more.
        """
        if not (self._sent or self._forgotten or self._num_kept > capacity):
            self._shown.clear()
            return [], []
        kept = {tile.digest for tile in self._sent}
        dropped = [digest for digest in self._forgotten if digest not in kept]
        sent, self._sent, self._forgotten = self._sent, [], []
        for digest in [digest for digest in self._kept if digest not in self._shown]:
            if self._num_kept <= capacity:
                break
            self._num_kept -= self._kept.pop(digest)
            dropped.append(digest)
        self._shown.clear()
        return sent, dropped

    def forget(self) -> None:
        """The weights have changed, or the workers are new ones, or they have released these rows."""
        self._forgotten += self._kept
        self._kept.clear()
        self._num_kept = 0
