"""ChunkCopies: the copies into or out of one chunk of a backup, and the checksum of the bytes that they move."""

import torch

from lullm.arena.checksum import NewDigest
from lullm.arena.transfer import Transfer


class ChunkCopies:
    """Moves bytes between a chunk and tensors, from the chunk's start to its end. One direction per chunk.

    A device's copies start at once; those of the host wait for `run`, which may be called on any thread, one at a time.

    Args:
        chunk: uint8 in host memory.
        new_digest: makes the checksum; None: there is none.
    """

    def __init__(self, chunk: torch.Tensor, transfer: Transfer, new_digest: NewDigest | None):
        self.chunk = chunk
        self.num_bytes = 0
        """Bytes moved so far, or that `run` will move."""
        self._transfer = transfer
        self._digest = None if new_digest is None else new_digest()
        # the bytes that `run` hashes, and their destination if it copies them
        self._hashed: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    @property
    def is_through(self) -> bool:
        return self.num_bytes == len(self.chunk)

    def fill(self, source: torch.Tensor) -> torch.Tensor:
        """Move as much of `source`, flat uint8, into the chunk as fits. Returns the rest of it.

        The checksum is of the source where the host can read it. A device's bytes are hashed in the chunk: their copy
        must have arrived before `run`.
        """
        place = self._next(source)
        source, rest = source[: len(place)], source[len(place) :]
        if self._transfer.copies_on_host(source):
            self._hashed.append((source, place))
        else:
            self._transfer.copy_out(place, source)
            self._hashed.append((place, None))
        return rest

    def empty(self, place: torch.Tensor) -> torch.Tensor:
        """Move as much of the chunk into `place`, flat uint8, as it holds. Returns the rest of the place."""
        source = self._next(place)
        place, rest = place[: len(source)], place[len(source) :]
        if self._transfer.copies_on_host(place):
            self._hashed.append((source, place))
        else:
            self._transfer.copy_in(place, source)
            self._hashed.append((source, None))
        return rest

    def run(self) -> None:
        """Do the host's copies so far, and hash the bytes moved so far. Their memory may then change. Blocking."""
        for hashed, place in self._hashed:
            if place is None:
                if self._digest is not None:
                    self._digest.update(hashed)
            elif self._digest is None:
                self._transfer.copy_on_host(place, hashed)
            else:
                self._digest.copy(place, hashed)
        self._hashed = []

    def digest(self) -> int:
        """`run`, then the checksum of all moved bytes; 0 without a digest."""
        self.run()
        return 0 if self._digest is None else self._digest.value()

    def _next(self, tensor: torch.Tensor) -> torch.Tensor:
        """The chunk's next bytes, as many as the tensor has or as are left."""
        piece = self.chunk[self.num_bytes : self.num_bytes + len(tensor)]
        self.num_bytes += len(piece)
        return piece
