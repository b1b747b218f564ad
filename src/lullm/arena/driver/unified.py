"""Structs that CUDA and HIP share: where memory is created, and which device may access it."""

import ctypes
from typing import Self

from lullm.arena.driver.driver import Library, Uint64Out

_PINNED = 1
_ON_DEVICE = 1
_READ_AND_WRITE = 3
_MINIMUM = 0


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp, hipMemAllocationProp: 32 bytes."""

    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("windows_handle_metadata", ctypes.c_void_p),
        ("compression_type", ctypes.c_ubyte),
        ("rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )

    @classmethod
    def on_device(cls, device_index: int) -> Self:
        return cls(allocation_type=_PINNED, location_type=_ON_DEVICE, location_id=device_index)


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc, hipMemAccessDesc: 12 bytes."""

    _fields_ = (("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int))

    @classmethod
    def for_device(cls, device_index: int) -> Self:
        return cls(_ON_DEVICE, device_index, _READ_AND_WRITE)


def allocation_granularity(library: Library, name: str, properties: AllocationProperties) -> int:
    """Sizes and addresses of such memory are multiples of so many bytes."""
    library.declare(name, Uint64Out, ctypes.c_void_p, ctypes.c_int)
    return library.output(name, ctypes.byref(properties), _MINIMUM)
