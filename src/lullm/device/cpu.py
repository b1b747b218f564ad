"""CpuDevice: the host as a `Device`. Work runs in the thread that asks for its result."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from lullm.arena.arena import Arena
from lullm.arena.host import HostArena
from lullm.arena.workspace import Workspace
from lullm.device.device import Captured, MemoryInfo, Tensors
from lullm.errors import UnsupportedError
from lullm.machine.memory import available_memory_bytes, memory_bound_bytes, resident_bytes_within, trim_malloc
from lullm.machine.memory_ahead import MemoryAhead
from lullm.ops.cpu.recording import Recording
from lullm.types.step import Running

T = TypeVar("T")


@dataclass(slots=True)
class _Deferred(Generic[T]):
    """Work that runs when `result` is called."""

    work: Callable[[], T]

    def result(self) -> T:
        return self.work()


class CpuDevice:
    """The host. Work runs in the thread that asks for its result.

    Args:
        ahead: memory for the first arena that fits into it.
    """

    torch_device = torch.device("cpu")
    is_accelerator = False
    records_ahead = False

    def __init__(self, ahead: MemoryAhead | None = None):
        self._ahead = ahead

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(available_memory_bytes(), memory_bound_bytes())

    def resident_bytes(self, arena: Arena) -> int:
        return resident_bytes_within(arena.base_address, arena.capacity_bytes)

    def new_arena(self, tag: str, capacity_bytes: int) -> Arena:
        return HostArena(tag, capacity_bytes, self._ahead)

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

    def on_side_stream(self, work: Callable[[], None]) -> None:
        work()

    def join_side_stream(self) -> None:
        pass

    def capture(self, work: Callable[[], Tensors], workspace: Workspace | None) -> Captured[Tensors]:
        assert workspace is not None, "recorded results need a fixed address"
        with Recording(workspace) as recording:
            outcome = work()

        def replay() -> None:
            if not recording.replay():
                work()  # raises the error of its input
                raise AssertionError("a replay failed and the work itself does not")

        if recording.refusal is not None:
            return Captured(outcome, replay, recording.refusal)
        # Borrowed, so that other recordings can use the same memory: 0.6 MB of logits per row.
        kept: Tensors = type(outcome)(*map(workspace.borrow, outcome))
        return Captured(kept, replay)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        raise UnsupportedError("the KV cache of a CPU is sized by kv_cache_memory_bytes, not by a profile run")

    def synchronize(self) -> None:
        pass

    def trim(self) -> None:
        trim_malloc()
