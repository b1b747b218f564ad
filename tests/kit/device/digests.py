"""Kinds of checksums for tests, and copies that go wrong."""

import pytest

from lullm.arena.checksum import Xxh3Digest
from lullm.ops.cpu.digest import NativeDigest
from lullm.ops.cpu.library import absence

DIGESTS = [
    pytest.param(Xxh3Digest, id="xxh3"),
    pytest.param(
        NativeDigest, id="native", marks=pytest.mark.skipif(absence() is not None, reason=f"no native ops: {absence()}")
    ),
]


def wrong_copies(new_digest):
    """A kind of checksum whose copies have one flipped bit."""

    class Wrong(new_digest):
        def copy(self, destination, source):
            super().copy(destination, source)
            if len(destination):
                destination[len(destination) // 2] ^= 1

    return Wrong
