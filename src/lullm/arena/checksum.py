"""Checksums of tensors' bytes, and copies that compute the checksum of the bytes that they read.

A `Digest` is one running checksum. The kind is chosen once per worker (`Ops.new_digest`): native code that copies and
hashes in one pass, or `Xxh3Digest`. Only checksums of the same kind and process can be compared.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
import xxhash

from lullm.units import MIB

_PART_BYTES = MIB
"""The part that is hashed, then copied: it fits in a core's L2 cache, where XXH3 reads 43 GB/s; 18 from memory."""


class Digest(Protocol):
    """A checksum of 64 bits or more over bytes that come in pieces; the places of the cuts do not matter.

    Pieces are flat uint8 in memory that the host can read. Blocking, on the calling thread, and without the
    interpreter's lock. One call at a time.
    """

    def update(self, source: torch.Tensor) -> None:
        """Add bytes."""
        ...

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copy bytes, and add those that were read from the source. Both have the same size."""
        ...

    def value(self) -> int:
        """The checksum of all bytes so far."""
        ...


NewDigest = Callable[[], Digest]


class Xxh3Digest:
    """XXH3-64 (https://xxhash.com) by the package xxhash: each part is hashed just before numpy copies it."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_64()

    def update(self, source: torch.Tensor) -> None:
        self._hash.update(source.numpy().data)

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        for start in range(0, len(source), _PART_BYTES):
            part = slice(start, start + _PART_BYTES)
            self.update(source[part])
            np.copyto(destination[part].numpy(), source[part].numpy())

    def value(self) -> int:
        return self._hash.intdigest()


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, flat; shares its memory."""
    return tensor.view(-1).view(torch.uint8)


def checksum(tensor: torch.Tensor, new_digest: NewDigest = Xxh3Digest) -> int:
    """The checksum of a contiguous tensor's bytes, on any device."""
    digest = new_digest()
    digest.update(bytes_of(tensor).cpu())
    return digest.value()
