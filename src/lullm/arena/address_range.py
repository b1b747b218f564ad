"""AddressRange: reserved addresses, cut into chunks that are each mapped or released.

The arena and every tensor cut from it hold the range. It is freed with the last of them.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from lullm.arena.backend import Backend
from lullm.errors import LullmError
from lullm.log import get_logger
from lullm.units import cdiv, format_bytes

logger = get_logger(__name__)


class ChunkState(Enum):
    """RELEASED --create_and_map--> MAPPED --unmap_and_release--> RELEASED; there is no third state."""

    RELEASED = "released"
    MAPPED = "mapped"


@dataclass
class Chunk:
    address: int
    num_bytes: int
    state: ChunkState = ChunkState.RELEASED
    handle: int = 0


class AddressRange:
    """`num_bytes` of reserved addresses; no chunk is mapped at first.

    Raises:
        LullmError: the back end refuses to reserve them.
    """

    def __init__(self, backend: Backend, num_bytes: int, chunk_bytes: int):
        self.address = backend.reserve(num_bytes)
        self.num_bytes = num_bytes
        self.chunk_bytes = chunk_bytes
        self.chunks = [
            Chunk(self.address + start, min(chunk_bytes, num_bytes - start))
            for start in range(0, num_bytes, chunk_bytes)
        ]
        self._backend = backend
        # Not at exit: the system frees everything then, and the driver may be unloaded already.
        weakref.finalize(self, _give_back, backend, self.address, num_bytes, self.chunks).atexit = False

    @property
    def mapped_bytes(self) -> int:
        return sum(chunk.num_bytes for chunk in self.chunks if chunk.state is ChunkState.MAPPED)

    def chunk_ids(self, offset: int, num_bytes: int) -> range:
        """The chunks that hold any of these bytes."""
        return range(offset // self.chunk_bytes, cdiv(offset + num_bytes, self.chunk_bytes))

    def map(self, chunk_ids: Iterable[int]) -> None:
        """Put memory behind the released ones of these chunks: behind all of them, or none.

        Raises:
            LullmError: the back end refuses; chunks that this call had mapped are released again.
        """
        mapped: list[Chunk] = []
        try:
            for chunk in self._in_state(chunk_ids, ChunkState.RELEASED):
                chunk.handle = self._backend.create_and_map(chunk.address, chunk.num_bytes)
                chunk.state = ChunkState.MAPPED
                mapped.append(chunk)
        except LullmError:
            for chunk in reversed(mapped):
                _release_or_log(self._backend, chunk)
            raise

    def release(self, chunk_ids: Iterable[int]) -> None:
        """Release the memory of the mapped ones of these chunks, as far as the back end allows.

        Raises:
            LullmError: the first refusal; chunks that were refused are still mapped.
        """
        refusals: list[LullmError] = []
        held_bytes = 0
        # Where a touch brings memory back, a released chunk may have some again.
        states = tuple(ChunkState) if self._backend.faults_in else (ChunkState.MAPPED,)
        for chunk in self._in_state(chunk_ids, *states):
            try:
                _release(self._backend, chunk)
            except LullmError as error:
                refusals.append(error)
                held_bytes += chunk.num_bytes
        if refusals:
            raise LullmError(f"{format_bytes(held_bytes)} could not be released: {refusals[0]}") from refusals[0]

    def _in_state(self, chunk_ids: Iterable[int], *states: ChunkState) -> list[Chunk]:
        return [chunk for chunk in (self.chunks[i] for i in chunk_ids) if chunk.state in states]


def _release(backend: Backend, chunk: Chunk) -> None:
    backend.unmap_and_release(chunk.address, chunk.num_bytes, chunk.handle)
    chunk.state, chunk.handle = ChunkState.RELEASED, 0


def _release_or_log(backend: Backend, chunk: Chunk) -> None:
    """For an undo or a destructor, whose caller cannot handle a refusal."""
    try:
        _release(backend, chunk)
    except LullmError as error:
        logger.error("%s of %s memory stay taken: %s", format_bytes(chunk.num_bytes), backend.name, error)


def _give_back(backend: Backend, address: int, num_bytes: int, chunks: list[Chunk]) -> None:
    for chunk in chunks:
        if chunk.state is ChunkState.MAPPED:
            _release_or_log(backend, chunk)
    # A driver refuses to free mapped addresses. A host frees pages and addresses in one call.
    if backend.faults_in or all(chunk.state is ChunkState.RELEASED for chunk in chunks):
        try:
            backend.free(address, num_bytes)
        except LullmError as error:
            logger.error("%s of %s addresses stay reserved: %s", format_bytes(num_bytes), backend.name, error)
