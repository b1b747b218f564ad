"""Checksums: XXH3-64 of tensors' bytes. One core does 13 GB/s, which is faster than most copies."""

import torch
import xxhash


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, flat; shares its memory."""
    return tensor.view(-1).view(torch.uint8)


def checksum(tensor: torch.Tensor) -> int:
    """The checksum of a contiguous tensor's bytes."""
    return xxhash.xxh3_64_intdigest(bytes_of(tensor).cpu().numpy().data)


class ChunkHash:
    """The checksum of bytes that lie in several places. Not for several threads at once."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()
        self._sources: list[torch.Tensor] = []

    def add(self, source: torch.Tensor) -> None:
        """Flat uint8 on the host, behind what was added before. It is read by `settle` or `digest`, and not now."""
        self._sources.append(source)

    def settle(self) -> None:
        """Read all sources that were added; their memory may change afterwards."""
        for source in self._sources:
            self._hash.update(source.numpy().data)
        self._sources = []

    def digest(self) -> int:
        """The checksum of all sources."""
        self.settle()
        return self._hash.intdigest()
