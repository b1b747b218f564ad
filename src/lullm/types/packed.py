"""Lists of integers as bytes: int32 in the machine's byte order. They cannot change, and cross a wire as they are.

`np.frombuffer(packed, np.int32)` reads one without a copy.
"""

from array import array
from collections.abc import Iterable

PackedInts = bytes
"""What `pack` gives."""

INT_BYTES = 4


def pack(numbers: Iterable[int]) -> PackedInts:
    """Raises OverflowError: a number is beyond 32 bits."""
    return array("i", numbers).tobytes()


def unpack(packed: PackedInts) -> list[int]:
    return memoryview(packed).cast("i").tolist()


def num_packed(packed: PackedInts) -> int:
    return len(packed) // INT_BYTES
