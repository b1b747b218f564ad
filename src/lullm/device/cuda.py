"""CudaDevice: one GPU as a `Device`. What has run on one: docs/gpu.md.

Torch for ROCm uses the same names, so a GPU of AMD differs in its arenas only.
"""

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lullm.arena.arena import Arena
from lullm.arena.backend import Backend
from lullm.arena.driver.cuda import cuda_backend
from lullm.arena.driver.dlpack import same_memory
from lullm.arena.driver.rocm import rocm_backend
from lullm.arena.pinned import PinnedArena
from lullm.arena.workspace import Workspace
from lullm.device.device import Captured, MemoryInfo, Tensors
from lullm.machine.memory import resident_bytes_within
from lullm.machine.processor import node_of_pci_device
from lullm.types.step import Running

T = TypeVar("T")

_RECORDING = threading.Lock()
"""Torch records one graph at a time in a process."""


def gpu_backend(index: int) -> Backend:
    """The back end for a GPU's memory: CUDA or ROCm, as torch is built. Raises UnsupportedError, LullmError."""
    return cuda_backend(index) if torch.version.hip is None else rocm_backend(index)


class CudaDevice:
    """One GPU, with a stream for the steps, a side stream, and one memory pool for all recorded graphs.

    Its driver maps the arenas.

    Raises:
        UnsupportedError: see `open_device`. LullmError: the driver fails.
    """

    is_accelerator = True
    records_ahead = True

    def __init__(self, index: int = 0):
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)  # Triton launches on the thread's current device
        self._backend = gpu_backend(index)
        self._host_node = _host_node(index)
        self._stream = torch.cuda.Stream(self.torch_device)
        self._side = torch.cuda.Stream(self.torch_device)
        self._graph_pool: Any = None

    def memory_info(self) -> MemoryInfo:
        return MemoryInfo(*torch.cuda.mem_get_info(self.torch_device))

    def resident_bytes(self, arena: Arena) -> int:
        if arena.backend is self._backend:
            return arena.mapped_bytes
        return resident_bytes_within(arena.base_address, arena.capacity_bytes)

    def new_arena(self, tag: str, capacity_bytes: int) -> Arena:
        return Arena(self._backend, tag, capacity_bytes)

    def new_host_arena(self, tag: str, capacity_bytes: int) -> Arena:
        return PinnedArena(self._backend, tag, capacity_bytes, self._host_node)

    def staging(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        with torch.cuda.device(self.torch_device):  # else a thread of torch's creates a context on GPU 0 for it
            return torch.zeros(tuple(shape), dtype=dtype, pin_memory=True)

    def to_host(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end) / 1e3

    def start(self, work: Callable[[], T]) -> Running[T]:
        with self._current(), torch.cuda.stream(self._stream):
            # Wait for work outside of steps: filled weights, restored blocks.
            self._stream.wait_stream(torch.cuda.default_stream(self.torch_device))
            outcome = work()
            done = torch.cuda.Event()
            done.record()
        return _Enqueued(outcome, done)

    def on_side_stream(self, work: Callable[[], None]) -> None:
        self._side.wait_stream(self._stream)
        with torch.cuda.stream(self._side):
            work()

    def join_side_stream(self) -> None:
        self._stream.wait_stream(self._side)

    def capture(self, work: Callable[[], Tensors], workspace: Workspace | None) -> Captured[Tensors]:
        if self._graph_pool is None:
            self._graph_pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Recorded on the stream that replays it. All engines of a process share torch's own recording stream, and the
        # workspace that cuBLAS keeps for each stream would come from the graphs' pool. 'thread_local': the thread of
        # another engine may use the device meanwhile.
        recording = torch.cuda.graph(graph, self._graph_pool, self._stream, capture_error_mode="thread_local")
        with _undisturbed(), self._current(), recording:
            outcome = work()
        # Borrowed, so that the next graphs can use the same memory: 0.6 MB of logits per row.
        borrowed = [self._borrowed(tensor, graph) for tensor in outcome]
        kept: Tensors = type(outcome)(*borrowed)
        del outcome
        return Captured(kept, graph.replay)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device current on this thread while work is enqueued: every thread starts with GPU 0.

        cuBLAS adds up the parts of a long bfloat16 or float16 product in float32. By torch's default it rounds them
        before, so that the sums would depend on how the product was split.
        """
        products = torch.backends.cuda.matmul
        before = products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction
        with torch.cuda.device(self.torch_device):
            products.allow_bf16_reduced_precision_reduction = products.allow_fp16_reduced_precision_reduction = False
            try:
                yield
            finally:
                products.allow_bf16_reduced_precision_reduction = before[0]
                products.allow_fp16_reduced_precision_reduction = before[1]

    def _borrowed(self, tensor: Tensor, graph: torch.cuda.CUDAGraph) -> Tensor:
        """The same tensor, valid until another graph of the pool is replayed. The graph keeps the pool."""
        return same_memory(tensor, self._backend.dlpack_device, graph)

    def peak_bytes(self, work: Callable[[], object]) -> int:
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        before = torch.cuda.memory_allocated(self.torch_device)
        work()
        self.synchronize()
        return torch.cuda.max_memory_allocated(self.torch_device) - before

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def trim(self) -> None:
        torch.cuda.empty_cache()


def _host_node(index: int) -> int | None:
    """The memory node next to a GPU; None: unknown."""
    facts = torch.cuda.get_device_properties(index)
    domain, bus, device = (getattr(facts, f"pci_{name}_id", None) for name in ("domain", "bus", "device"))
    return None if domain is None or bus is None or device is None else node_of_pci_device(domain, bus, device)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Prevent other recordings in this process, and garbage collection.

    A collection may find a dead engine; unmapping its arenas or dropping its graphs breaks a recording of this thread.
    Torch no longer collects before a recording, and never prevented a collection within it.
    """
    with _RECORDING:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


@dataclass(slots=True)
class _Enqueued(Generic[T]):
    """Work on the device's stream; `done` marks its end."""

    outcome: T
    done: torch.cuda.Event

    def result(self) -> T:
        self.done.synchronize()
        return self.outcome
