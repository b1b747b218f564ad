"""Device: a worker's view of hardware: memory in numbers, and a way to start steps and wait for them.

`CpuDevice` (`device.cpu`) does the work when its result is asked for. `CudaDevice` (`device.cuda`) enqueues it on a
stream, so that the host can plan the next step meanwhile. `device.choice` opens the one that a config names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from lullm.arena.arena import Arena
from lullm.arena.workspace import Workspace
from lullm.types.step import Running

T = TypeVar("T")
Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """A device's memory in bytes: free, and total."""

    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Captured(Generic[Tensors]):
    """Recorded work. `replay` recomputes the contents of `output`, at the same addresses.

    The contents are valid until another recording of the device runs. `refusal`: why the work cannot be recorded; then
    `output` is the result of this one run, and `replay` must not be called. None: it can.
    """

    output: Tensors
    replay: Callable[[], None]
    refusal: str | None = None


class Device(Protocol):
    """The place of tensors and work. Work runs in the order in which it was started. One thread makes all calls.

    `torch_device`: for factories. `is_accelerator`: work runs beside the host, on tensors outside of host memory.
    `records_ahead`: decodes are recorded before the first request, for few sizes. False: when a size first occurs.
    """

    torch_device: torch.device
    is_accelerator: bool
    records_ahead: bool

    def memory_info(self) -> MemoryInfo: ...

    def resident_bytes(self, arena: Arena) -> int:
        """Physical memory of an arena of this device, or of its host memory, now."""
        ...

    def new_arena(self, tag: str, capacity_bytes: int) -> Arena:
        """Memory of the device. Raises CacheSizeError."""
        ...

    def new_host_arena(self, tag: str, capacity_bytes: int) -> Arena:
        """Host memory that the device can read and write. Raises CacheSizeError."""
        ...

    def staging(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Host memory (zeros) whose copies to the device do not block the host."""
        ...

    def to_host(self, tensor: Tensor) -> Tensor:
        """A copy on the host, valid once all work started so far is done."""
        ...

    def mark(self) -> Any:
        """A point in the current work, for `seconds_between`."""
        ...

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds between two marks of finished work."""
        ...

    def start(self, work: Callable[[], T]) -> Running[T]:
        """Run the work after all work started before. A CPU runs it when its result is asked for."""
        ...

    def on_side_stream(self, work: Callable[[], None]) -> None:
        """Inside the work of `start`: run this after all work so far, and in parallel with the work that follows."""
        ...

    def join_side_stream(self) -> None:
        """Inside the work of `start`: let all work that follows wait for the work of `on_side_stream`."""
        ...

    def capture(self, work: Callable[[], Tensors], workspace: Workspace | None) -> Captured[Tensors]:
        """Record work that uses the same addresses every time and returns a named tuple of contiguous tensors.

        A CPU runs the work while it records, and takes memory for results from `workspace`. An accelerator runs it with
        the first replay, and has a pool of its own.
        """
        ...

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """Run the work. Returns the most memory in bytes that it held, beyond that held before and the arenas."""
        ...

    def synchronize(self) -> None:
        """Block until all work that has been started is done."""
        ...

    def trim(self) -> None:
        """Free the unused memory that the allocator of activations keeps."""
        ...
