"""The NVIDIA GPUs that this process may use, as the driver lists them, and whether `device="auto"` takes one. No torch.

NVML, the driver's management library, opens no context on a GPU, so that asking costs no memory there and is safe
before a fork. Where it is missing the driver's files in /proc are read.
"""

import ctypes
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

LEAST_CAPABILITY = (8, 0)
"""Compute capability of the GPUs that 'auto' takes: bfloat16 in the matrix unit; older ones have no tiles."""

_ROOT = Path("/")
_LIBRARY = "libnvidia-ml.so.1"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NAME_BYTES = 96  # NVML's largest buffer for a name or a UUID


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine. `capability`: its compute capability; None: the driver's files do not have it."""

    name: str
    uuid: str
    capability: tuple[int, int] | None


def why_auto_is_cpu(root: Path = _ROOT) -> str | None:
    """Why `device="auto"` is the CPU here; None: it is a GPU."""
    listed = listed_gpus(root)
    gpus = select(listed, os.environ.get(_VISIBLE))
    if not gpus:
        return f"{_VISIBLE} hides the GPU" if listed else "there is no NVIDIA GPU"
    known = [gpu.capability for gpu in gpus if gpu.capability is not None]
    if known and max(known) < LEAST_CAPABILITY:  # CUDA's first GPU is its fastest
        found, least = (".".join(map(str, capability)) for capability in (max(known), LEAST_CAPABILITY))
        return f"the GPU's compute capability {found} is below {least}"
    return _missing_package()


def select(gpus: Sequence[Gpu], given: str | None) -> tuple[Gpu, ...]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES names, by number or the start of a UUID. None: all.

    As in CUDA, the first name of no GPU ends the list. A part of a GPU (MIG) counts as the first of them.
    """
    if given is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for name in (part.strip() for part in given.split(",")):
        if name.isdecimal():
            found = list(gpus[int(name) : int(name) + 1])
        elif name.startswith("MIG-"):
            found = list(gpus[:1])
        else:
            found = [gpu for gpu in gpus if name.startswith("GPU-") and gpu.uuid.startswith(name)]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen)


def listed_gpus(root: Path = _ROOT) -> tuple[Gpu, ...]:
    """The machine's GPUs, also those that CUDA_VISIBLE_DEVICES hides. With another root: by the files there."""
    return _gpus_of_this_machine() if root == _ROOT else listed_in_files(root)


@functools.cache  # they stay, and NVML takes some 20 ms to start
def _gpus_of_this_machine() -> tuple[Gpu, ...]:
    try:
        return listed_by_library(ctypes.CDLL(_LIBRARY)) or listed_in_files(_ROOT)
    except OSError:
        return listed_in_files(_ROOT)


def listed_by_library(library: ctypes.CDLL) -> tuple[Gpu, ...]:
    """The GPUs by NVML, in its order; () where it finds no driver."""
    if library.nvmlInit_v2() != 0:
        return ()
    try:
        count = ctypes.c_uint(0)
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return ()
        gpus = [_described(library, index) for index in range(count.value)]
    finally:
        library.nvmlShutdown()
    return tuple(gpu for gpu in gpus if gpu is not None)


def _described(library: ctypes.CDLL, index: int) -> Gpu | None:
    """None: this process may not open it (a container that was given others)."""
    handle = ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) != 0:
        return None
    name, uuid = ctypes.create_string_buffer(_NAME_BYTES), ctypes.create_string_buffer(_NAME_BYTES)
    length = ctypes.c_uint(_NAME_BYTES)
    library.nvmlDeviceGetName(handle, name, length)
    library.nvmlDeviceGetUUID(handle, uuid, length)
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    is_known = library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0
    return Gpu(
        name.value.decode(errors="replace") or "GPU",
        uuid.value.decode(errors="replace"),
        (major.value, minor.value) if is_known else None,
    )


def listed_in_files(root: Path) -> tuple[Gpu, ...]:
    """The GPUs by the driver's files under `root`, in the order of their bus addresses."""
    gpus = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        lines = [line.partition(":") for line in path.read_text().splitlines()]
        facts = {key.strip(): value.strip() for key, _, value in lines}
        gpus.append(Gpu(facts.get("Model") or "GPU", facts.get("GPU UUID", ""), None))
    return tuple(gpus)


@functools.cache
def _missing_package() -> str | None:
    """What a GPU needs and is not installed, without importing it."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "torch is not installed"
    if torch.endswith("+cpu"):
        return f"torch {torch} is built for CPUs only"
    return None if find_spec("triton") else "the package triton is not installed"
