"""The device a worker runs on: its memory in numbers, and how a step is started on it and waited for.

A `Device` is what a worker knows of hardware. `CpuDevice` does the work where it is waited for; `CudaDevice` (in
`cuda_device`) enqueues it on a stream, so that the host can plan the next step meanwhile.
"""

import contextlib
import ctypes
import mmap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from lullm.arena.arena import Arena
from lullm.arena.host import HostArena
from lullm.arena.workspace import Workspace
from lullm.errors import UnsupportedError
from lullm.ops.cpu.recording import Recording
from lullm.units import KIB, cdiv

_PAGES_AT_ONCE = 1 << 16
"""That the kernel is asked about: a byte each, and a KV cache that is reserved, not filled, may have millions."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def available_memory_bytes() -> int:
    """Host memory that can be taken without swapping, within the limit of the control group if there is one."""
    available = _meminfo("MemAvailable")
    for folder, limit_file, usage_file, cache_field in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _read_int(f"{folder}/{limit_file}"), _read_int(f"{folder}/{usage_file}")
        if limit is not None and usage is not None:
            # Files that were read count as used until somebody needs the memory, such as a checkpoint just loaded.
            usage -= _field(f"{folder}/memory.stat", cache_field) or 0
            available = min(available, max(limit - usage, 0))
    return available


def resident_bytes() -> int:
    """Physical memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


def resident_bytes_within(address: int, num_bytes: int) -> int:
    """Physical memory behind a range of anonymous memory of this process, that starts at a page (`mincore(2)`)."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    pages = (ctypes.c_ubyte * _PAGES_AT_ONCE)()
    num_resident = 0
    for start in range(0, num_bytes, _PAGES_AT_ONCE * mmap.PAGESIZE):
        part_bytes = min(num_bytes - start, _PAGES_AT_ONCE * mmap.PAGESIZE)
        if mincore(ctypes.c_void_p(address + start), ctypes.c_size_t(part_bytes), pages):
            raise OSError(ctypes.get_errno(), "the kernel does not say which pages are resident")
        num_resident += bytes(memoryview(pages)[: cdiv(part_bytes, mmap.PAGESIZE)]).count(1)
    return num_resident * mmap.PAGESIZE


def _meminfo(field: str) -> int:
    value = _field("/proc/meminfo", f"{field}:")
    if value is None:
        raise RuntimeError(f"/proc/meminfo has no field {field}")
    return value * KIB


def _field(path: str, name: str) -> int | None:
    """The number behind `name` in a file of lines; None if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(words[1]) for words in map(str.split, lines) if words and words[0] == name), None)


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such file; or 'max'
        return None


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Bytes of a device's memory: what nobody holds, and all there are."""

    free_bytes: int
    total_bytes: int


class Running(Protocol[T_co]):
    """A piece of work that has been started."""

    def result(self) -> T_co:
        """What it gives. Blocks until it is done; raises what it raised. To be asked once, in the order of starts."""
        ...


@dataclass(frozen=True, slots=True)
class Captured(Generic[Tensors]):
    """Work that was recorded. `output`: what it gives; a replay renews the contents, at the same addresses.

    They last until something else that was recorded on the device runs. `refusal`: why the work cannot be recorded;
    then `output` is what it has given this once, and there is no replay. None: it can.
    """

    output: Tensors
    replay: Callable[[], None]
    refusal: str | None = None


class Device(Protocol):
    """Where tensors are and work is done. Work that is started later runs later. Calls belong to one thread.

    `torch_device`: for factories. `is_accelerator`: work runs beside the host, on tensors that are not the host's.
    """

    torch_device: torch.device
    is_accelerator: bool

    def memory_info(self) -> MemoryInfo: ...

    def resident_bytes(self, arena: Arena) -> int:
        """Physical memory behind an arena of this device, or of its host memory, now."""
        ...

    def new_arena(self, tag: str, capacity_bytes: int) -> Arena:
        """Memory of the device. Raises CacheSizeError."""
        ...

    def new_host_arena(self, tag: str, capacity_bytes: int) -> Arena:
        """Host memory that the device can read and write. Raises CacheSizeError."""
        ...

    def staging(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Host memory from which copies to the device run beside the host."""
        ...

    def to_host(self, tensor: Tensor) -> Tensor:
        """A tensor that holds the same on the host once what was started is done."""
        ...

    def mark(self) -> Any:
        """A point of the work being done, for `seconds_between`."""
        ...

    def seconds_between(self, start: Any, end: Any) -> float:
        """Between two marks of work that is done."""
        ...

    def start(self, work: Callable[[], T]) -> Running[T]:
        """Do the work after all that was started before. A CPU does it when its result is asked for."""
        ...

    def beside(self, work: Callable[[], None]) -> None:
        """Within the work of a `start`: do this after all that was done so far, and beside all that follows."""
        ...

    def join(self) -> None:
        """Within the work of a `start`: all that follows comes after what `beside` was given."""
        ...

    def capture(self, work: Callable[[], Tensors], workspace: Workspace | None) -> Captured[Tensors]:
        """Record the work, which touches the same addresses every time and gives a named tuple of contiguous tensors.

        A CPU does the work while it records it, and takes memory for results from `workspace`; an accelerator does it
        with the first replay, and has a pool of its own.
        """
        ...

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Do the work; how much more memory it held at most than there was before, arenas aside."""
        ...

    def synchronize(self) -> None:
        """Block until everything that was started is done."""
        ...

    def trim(self) -> None:
        """Give back what the allocator of activations keeps for later, though nobody uses it."""
        ...


@dataclass(slots=True)
class _Deferred(Generic[T]):
    """Work that is done when somebody asks for its result."""

    work: Callable[[], T]

    def result(self) -> T:
        return self.work()


class CpuDevice:
    """The host itself. Its work is done in the thread that asks for the result."""

    torch_device = torch.device("cpu")
    is_accelerator = False

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(available_memory_bytes(), _meminfo("MemTotal"))

    def resident_bytes(self, arena: Arena) -> int:
        return resident_bytes_within(arena.base_address, arena.capacity_bytes)

    def new_arena(self, tag: str, capacity_bytes: int) -> Arena:
        return HostArena(tag, capacity_bytes)

    def new_host_arena(self, tag: str, capacity_bytes: int) -> Arena:
        return HostArena(tag, capacity_bytes)

    def staging(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def to_host(self, tensor: Tensor) -> Tensor:
        return tensor

    def mark(self) -> float:
        return time.perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        return end - start

    def start(self, work: Callable[[], T]) -> Running[T]:
        return _Deferred(work)

    def beside(self, work: Callable[[], None]) -> None:
        work()

    def join(self) -> None:
        pass

    def capture(self, work: Callable[[], Tensors], workspace: Workspace | None) -> Captured[Tensors]:
        assert workspace is not None, "results need memory that stays"
        with Recording(workspace) as recording:
            outcome = work()

        def replay() -> None:
            if not recording.replay():
                work()  # raises what is wrong with its input
                raise AssertionError("a replay failed and the work itself does not")

        if recording.refusal is not None:
            return Captured(outcome, replay, recording.refusal)
        # Tensors that keep their memory would keep it from other recordings: 0.6 MB of logits per row.
        kept: Tensors = type(outcome)(*map(workspace.borrow, outcome))
        return Captured(kept, replay)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        raise UnsupportedError("the KV cache of a CPU is sized by kv_cache_memory_bytes, not by a profile run")

    def synchronize(self) -> None:
        pass

    def trim(self) -> None:
        with contextlib.suppress(AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


def open_device(name: str) -> Device:
    """The device of a resolved config: 'cpu' or 'cuda' (the GPU that is current, of NVIDIA or AMD).

    Raises:
        UnsupportedError: something that a GPU needs is missing; the message names it.
    """
    if name == "cpu":
        return CpuDevice()
    missing = missing_for_cuda()
    if missing is not None:
        raise UnsupportedError(f"device={name!r} cannot be used: {missing}; use device='cpu'")
    from lullm.worker.cuda_device import CudaDevice  # loads the driver's library

    return CudaDevice(torch.cuda.current_device())


def missing_for_cuda() -> str | None:
    """What keeps device='cuda' from working here; None: nothing."""
    if torch.version.cuda is None and torch.version.hip is None:  # a build for ROCm calls its devices 'cuda', too
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU (is the driver there, and CUDA_VISIBLE_DEVICES right?)"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    return None
