"""The Ascend back end: virtual memory of AscendCL (libascendcl), by ctypes.

Mapped memory is accessible without a further call, and unmapping needs the address only. Requires torch_npu, torch's
plug-in for the device. Not yet run on an NPU, and no config reaches it yet; see docs/arenas.md.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from lullm.arena.backend import CHUNK_BYTES, Backend, CopyKind
from lullm.arena.driver.driver import (
    DeviceDriver,
    Library,
    MemoryFunctions,
    StreamFunctions,
    device_backend,
    initialize_torch,
)

_MEMORY = MemoryFunctions(
    reserve="aclrtReserveMemAddress",
    create="aclrtMallocPhysical",
    map="aclrtMapMem",
    set_access=None,
    unmap="aclrtUnmapMem",
    release="aclrtFreePhysical",
    free="aclrtReleaseMemAddress",
    takes_sizes=False,
    reserve_flags=1,  # huge pages, like the memory
)
_STREAMS = StreamFunctions(
    create="aclrtCreateStream",
    synchronize="aclrtSynchronizeStream",
    destroy="aclrtDestroyStream",
    create_event="aclrtCreateEvent",
    record_event="aclrtRecordEvent",
    synchronize_event="aclrtSynchronizeEvent",
    destroy_event="aclrtDestroyEvent",
)
_COPY_KINDS = {CopyKind.TO_HOST: 2, CopyKind.TO_ARENA: 1}  # aclrtMemcpyKind
_OUT_OF_MEMORY = (200000, 207001)  # ACL_ERROR_BAD_ALLOC, ACL_ERROR_RT_MEMORY_ALLOCATION
_UNSUPPORTED = (200001, 207000)  # ACL_ERROR_API_NOT_SUPPORT, ACL_ERROR_RT_FEATURE_NOT_SUPPORT
_HUGE_PAGES_OF_DEVICE_MEMORY = 4  # ACL_HBM_MEM_HUGE
_ON_DEVICE = 1
_MINIMUM = 0
_DLPACK_EXTENSION = 12  # torch's name for it: PrivateUse1


class PhysicalMemoryProperties(ctypes.Structure):
    """aclrtPhysicalMemProp: 32 bytes."""

    _fields_ = (
        ("handle_type", ctypes.c_int),
        ("allocation_type", ctypes.c_int),
        ("attribute", ctypes.c_int),
        ("location_id", ctypes.c_uint32),
        ("location_type", ctypes.c_int),
        ("reserved", ctypes.c_uint64),
    )


def npu_backend(
    device_index: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
    library: str | Path = "libascendcl.so",
    initialize: Callable[[int], object] = torch.accelerator.set_device_index,
) -> Backend:
    """The table for the memory of one Ascend NPU.

    Args:
        device_index: torch's index of the device ('npu:0').
        chunk_bytes: size of the pieces that are mapped, rounded up to the driver's granularity (2 MiB).
        library: AscendCL, by name or path.
        initialize: called first, with the index; lets torch create its state for the device.

    Raises:
        UnsupportedError: no AscendCL, or a device without virtual memory. LullmError: AscendCL fails.
    """
    driver = Library("Ascend", (library,), _describe, _OUT_OF_MEMORY, _UNSUPPORTED)
    address = stream = ctypes.c_uint64
    size = ctypes.c_size_t
    driver.declare("aclrtSetDevice", ctypes.c_int32)
    driver.declare("aclrtMemGetAllocationGranularity", ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    driver.declare("aclrtMemcpyAsync", address, size, address, size, ctypes.c_int, stream)
    initialize_torch(driver.title, lambda: initialize(device_index))

    def make_current() -> None:
        driver.call("aclrtSetDevice", device_index)

    def copy_async(destination: int, source: int, num_bytes: int, kind: CopyKind, stream: int) -> None:
        driver.call("aclrtMemcpyAsync", destination, num_bytes, source, num_bytes, _COPY_KINDS[kind], stream)

    make_current()
    properties = PhysicalMemoryProperties(
        attribute=_HUGE_PAGES_OF_DEVICE_MEMORY, location_id=device_index, location_type=_ON_DEVICE
    )
    granularity = size()
    driver.call("aclrtMemGetAllocationGranularity", ctypes.byref(properties), _MINIMUM, ctypes.byref(granularity))
    device = DeviceDriver(
        library=driver,
        memory=_MEMORY,
        streams=_STREAMS,
        dlpack_device=(_DLPACK_EXTENSION, device_index),
        make_current=make_current,
        granularity=granularity.value,
        properties=properties,
        access=None,
        copy_async=copy_async,
    )
    return device_backend(device, chunk_bytes)


def _describe(library: ctypes.CDLL, code: int) -> str:
    library.aclGetRecentErrMsg.restype = ctypes.c_char_p
    text = library.aclGetRecentErrMsg()
    return text.decode(errors="replace").strip() if text else "AscendCL has no message for it"
