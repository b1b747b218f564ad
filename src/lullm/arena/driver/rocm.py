"""The ROCm back end: virtual memory of HIP (libamdhip64), by ctypes.

Not yet run on a GPU; see docs/arenas.md.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch

from lullm.arena.backend import CHUNK_BYTES, Backend, CopyKind
from lullm.arena.driver.driver import (
    Library,
    MemoryFunctions,
    PinFunctions,
    StreamFunctions,
    device_backend,
    initialize_torch,
)
from lullm.arena.driver.unified import UnifiedFunctions, unified_driver

_FUNCTIONS = UnifiedFunctions(
    memory=MemoryFunctions(
        reserve="hipMemAddressReserve",
        create="hipMemCreate",
        map="hipMemMap",
        set_access="hipMemSetAccess",
        unmap="hipMemUnmap",
        release="hipMemRelease",
        free="hipMemAddressFree",
    ),
    streams=StreamFunctions(
        create="hipStreamCreateWithFlags",
        synchronize="hipStreamSynchronize",
        destroy="hipStreamDestroy",
        create_event="hipEventCreateWithFlags",
        record_event="hipEventRecord",
        synchronize_event="hipEventSynchronize",
        destroy_event="hipEventDestroy",
        stream_flags=(1,),  # hipStreamNonBlocking
        event_flags=(2,),  # hipEventDisableTiming
    ),
    pinning=PinFunctions(pin="hipHostRegister", unpin="hipHostUnregister", flags=3),  # hipHostRegisterPortable, Mapped
    granularity="hipMemGetAllocationGranularity",
    dlpack_type=10,  # kDLROCM
)
_COPY_KINDS = {CopyKind.TO_HOST: 2, CopyKind.TO_ARENA: 1}  # hipMemcpyKind
_OUT_OF_MEMORY = (2,)
_UNSUPPORTED = (100, 801)  # hipErrorNoDevice, hipErrorNotSupported


def rocm_backend(
    device_index: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
    library: str | Path | None = None,
    initialize: Callable[[int], object] = torch.accelerator.set_device_index,
) -> Backend:
    """The table for the memory of one AMD GPU.

    Args:
        device_index: torch's index of the device.
        chunk_bytes: size of the pieces that are mapped, rounded up to HIP's granularity.
        library: HIP, by name or path; None: the copy that comes with torch, else the system's.
        initialize: called first, with the index; lets torch create its state for the device.

    Raises:
        UnsupportedError: no HIP, no such device, or one without virtual memory. LullmError: HIP fails.
    """
    own = Path(torch.__file__).parent / "lib" / "libamdhip64.so"  # two copies of HIP in a process do not share memory
    paths = (own, "libamdhip64.so") if library is None else (library,)
    driver = Library("ROCm", paths, _describe, _OUT_OF_MEMORY, _UNSUPPORTED)
    driver.declare("hipInit", ctypes.c_uint)
    driver.declare("hipSetDevice", ctypes.c_int)
    driver.declare("hipMemcpyAsync", ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64)
    initialize_torch(driver.title, lambda: initialize(device_index))
    driver.call("hipInit", 0)

    def make_current() -> None:
        driver.call("hipSetDevice", device_index)

    def copy_async(destination: int, source: int, num_bytes: int, kind: CopyKind, stream: int) -> None:
        driver.call("hipMemcpyAsync", destination, source, num_bytes, _COPY_KINDS[kind], stream)

    return device_backend(unified_driver(driver, _FUNCTIONS, device_index, make_current, copy_async), chunk_bytes)


def _describe(library: ctypes.CDLL, code: int) -> str:
    library.hipGetErrorString.restype = ctypes.c_char_p
    text = library.hipGetErrorString(ctypes.c_int(code))
    return text.decode(errors="replace") if text else "a code without a name"
