"""Lists of integers as bytes: int32 in the machine's byte order. They are immutable, and are sent without conversion.

`np.frombuffer(packed, np.int32)` reads one without a copy.
"""

import struct
from array import array
from collections.abc import Callable, Iterable

PackedInts = bytes
"""The result of `pack`."""

_INT = struct.Struct("=i")
INT_BYTES = _INT.size


def pack(numbers: Iterable[int]) -> PackedInts:
    """Raises OverflowError: a number is beyond 32 bits."""
    return array("i", numbers).tobytes()


pack_one: Callable[[int], PackedInts] = _INT.pack
"""`pack([number])`, in a seventh of the time. Raises struct.error: the number is beyond 32 bits."""


def view(packed: PackedInts) -> "memoryview[int]":
    """The numbers, without a copy."""
    return memoryview(packed).cast("i")


def unpack(packed: PackedInts) -> list[int]:
    return view(packed).tolist()


def num_packed(packed: PackedInts) -> int:
    return len(packed) // INT_BYTES
