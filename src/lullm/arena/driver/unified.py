"""What CUDA and HIP share: the structs that say where memory is created and which device may access it."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from lullm.arena.backend import CopyKind
from lullm.arena.driver.driver import (
    DeviceDriver,
    Library,
    MemoryFunctions,
    PinFunctions,
    StreamFunctions,
    Uint64Out,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnifiedFunctions:
    """The names of a driver's functions. `dlpack_type`: its devices' in DLPack."""

    memory: MemoryFunctions
    streams: StreamFunctions
    pinning: PinFunctions
    granularity: str
    dlpack_type: int


def unified_driver(
    library: Library,
    functions: UnifiedFunctions,
    device_index: int,
    make_current: Callable[[], None],
    copy_async: Callable[[int, int, int, CopyKind, int], None],
) -> DeviceDriver:
    """The driver of one device, which is made current. The last two arguments: see `DeviceDriver`."""
    make_current()
    properties = AllocationProperties.on_device(device_index)
    library.declare(functions.granularity, Uint64Out, ctypes.c_void_p, ctypes.c_int)
    return DeviceDriver(
        library=library,
        memory=functions.memory,
        streams=functions.streams,
        dlpack_device=(functions.dlpack_type, device_index),
        make_current=make_current,
        granularity=library.output(functions.granularity, ctypes.byref(properties), _MINIMUM),
        properties=properties,
        access=AccessDescription.for_device(device_index),
        copy_async=copy_async,
        pinning=functions.pinning,
    )
