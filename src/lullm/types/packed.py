"""Lists of integers as bytes: int32 in the machine's byte order. They cannot change, and cross a wire as they are.

`np.frombuffer(packed, np.int32)` reads one without a copy.
"""

import struct
from array import array
from collections.abc import Iterable

PackedInts = bytes
"""What `pack` gives."""

_INT = struct.Struct("=i")
INT_BYTES = _INT.size


def pack(numbers: Iterable[int]) -> PackedInts:
    """Raises OverflowError: a number is beyond 32 bits."""
    return array("i", numbers).tobytes()


def pack_one(number: int) -> PackedInts:
    """`pack([number])`, three times as fast. Raises struct.error: the number is beyond 32 bits."""
    return _INT.pack(number)


def unpack(packed: PackedInts) -> list[int]:
    return memoryview(packed).cast("i").tolist()


def num_packed(packed: PackedInts) -> int:
    return len(packed) // INT_BYTES
