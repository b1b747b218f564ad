"""The CUDA back end: virtual memory of the driver API (libcuda), by ctypes.

The calls need torch's own context, the primary one of the device: it is retained here and made current on every calling
thread. See docs/gpu.md for the GPUs that have run it.
"""

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path

import torch

from lullm.arena.backend import CHUNK_BYTES, Backend, CopyKind
from lullm.arena.driver.driver import (
    Library,
    MemoryFunctions,
    PinFunctions,
    StreamFunctions,
    Uint64Out,
    device_backend,
    initialize_torch,
)
from lullm.arena.driver.unified import UnifiedFunctions, unified_driver
from lullm.errors import LullmError, UnsupportedError
from lullm.log import get_logger

logger = get_logger(__name__)

_FUNCTIONS = UnifiedFunctions(
    memory=MemoryFunctions(
        reserve="cuMemAddressReserve",
        create="cuMemCreate",
        map="cuMemMap",
        set_access="cuMemSetAccess",
        unmap="cuMemUnmap",
        release="cuMemRelease",
        free="cuMemAddressFree",
    ),
    streams=StreamFunctions(
        create="cuStreamCreate",
        synchronize="cuStreamSynchronize",
        destroy="cuStreamDestroy_v2",
        create_event="cuEventCreate",
        record_event="cuEventRecord",
        synchronize_event="cuEventSynchronize",
        destroy_event="cuEventDestroy_v2",
        stream_flags=(1,),  # CU_STREAM_NON_BLOCKING: not ordered after the null stream
        event_flags=(2,),  # CU_EVENT_DISABLE_TIMING
    ),
    pinning=PinFunctions(
        pin="cuMemHostRegister_v2",
        unpin="cuMemHostUnregister",
        flags=3,  # CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP
    ),
    granularity="cuMemGetAllocationGranularity",
    dlpack_type=2,  # kDLCUDA
)
_OWN_FUNCTIONS = (
    ("cuInit", ctypes.c_uint),
    ("cuDeviceGet", Uint64Out, ctypes.c_int),
    ("cuDeviceGetAttribute", Uint64Out, ctypes.c_int, ctypes.c_int),
    ("cuDevicePrimaryCtxRetain", Uint64Out, ctypes.c_int),
    ("cuDevicePrimaryCtxRelease_v2", ctypes.c_int),
    ("cuCtxSetCurrent", ctypes.c_uint64),
    ("cuMemcpyDtoHAsync_v2", ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64),
    ("cuMemcpyHtoDAsync_v2", ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64),
)
"""The functions that only this driver has, with the types of their arguments."""
_COPIES = {CopyKind.TO_HOST: "cuMemcpyDtoHAsync_v2", CopyKind.TO_ARENA: "cuMemcpyHtoDAsync_v2"}
_OUT_OF_MEMORY = (2,)
_UNSUPPORTED = (100, 801)  # CUDA_ERROR_NO_DEVICE, CUDA_ERROR_NOT_SUPPORTED
_VIRTUAL_MEMORY_SUPPORTED = 102  # a CUdevice_attribute


def cuda_backend(
    device_index: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
    library: str | Path = "libcuda.so.1",
    initialize: Callable[[], object] = torch.cuda.init,
) -> Backend:
    """The table for the memory of one GPU. Retains its primary context for as long as the table is in use.

    Args:
        device_index: torch's index of the device ('cuda:0').
        chunk_bytes: size of the pieces that are mapped, rounded up to the driver's granularity (2 MiB).
        library: the driver, by name or path.
        initialize: called first; lets torch create its state for the device.

    Raises:
        UnsupportedError: no driver, no such device, or one without virtual memory. LullmError: the driver fails.
    """
    driver = Library("CUDA", (library,), _describe, _OUT_OF_MEMORY, _UNSUPPORTED)
    for name, *argument_types in _OWN_FUNCTIONS:
        driver.declare(name, *argument_types)
    initialize_torch(driver.title, initialize)
    driver.call("cuInit", 0)
    device = driver.output("cuDeviceGet", device_index, doing=f"find device {device_index}")
    if not driver.output("cuDeviceGetAttribute", _VIRTUAL_MEMORY_SUPPORTED, device):
        raise UnsupportedError(f"CUDA device {device_index} has no virtual memory management; its memory cannot sleep")
    context = driver.output("cuDevicePrimaryCtxRetain", device)

    def make_current() -> None:
        driver.call("cuCtxSetCurrent", context)

    def copy_async(destination: int, source: int, num_bytes: int, kind: CopyKind, stream: int) -> None:
        driver.call(_COPIES[kind], destination, source, num_bytes, stream)

    try:
        gpu = unified_driver(driver, _FUNCTIONS, device_index, make_current, copy_async)
        backend = device_backend(gpu, chunk_bytes)
    except LullmError:
        _release_context(driver, device)
        raise
    # The table holds `gpu`; arenas and their tensors hold the table. With the last of them the context is released.
    weakref.finalize(gpu, _release_context, driver, device).atexit = False
    return backend


def _release_context(driver: Library, device: int) -> None:
    try:
        driver.call("cuDevicePrimaryCtxRelease_v2", device)
    except LullmError as error:
        logger.error("the primary context stays retained: %s", error)


def _describe(library: ctypes.CDLL, code: int) -> str:
    words = []
    for function in (library.cuGetErrorName, library.cuGetErrorString):
        text = ctypes.c_char_p()
        if function(ctypes.c_int(code), ctypes.byref(text)) == 0 and text.value:
            words.append(text.value.decode(errors="replace"))
    return ", ".join(words) or "a code without a name"
