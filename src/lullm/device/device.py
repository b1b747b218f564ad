"""Device: what a worker knows of hardware: its memory in numbers, and how a step is started on it and waited for.

`CpuDevice` (in `cpu_device`) does the work where it is waited for; `CudaDevice` (in `cuda_device`) enqueues it on a
stream, so that the host can plan the next step meanwhile. `device_choice` opens the one that a config names.
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
    """Bytes of a device's memory: what nobody holds, and all there are."""

    free_bytes: int
    total_bytes: int


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
    `records_ahead`: decodes are recorded before the first request, for few sizes. False: when a size is first met.
    """

    torch_device: torch.device
    is_accelerator: bool
    records_ahead: bool

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

    def on_side_stream(self, work: Callable[[], None]) -> None:
        """Within the work of a `start`: do this after all that was done so far, and beside all that follows."""
        ...

    def join_side_stream(self) -> None:
        """Within the work of a `start`: all that follows comes after what `on_side_stream` was given."""
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
