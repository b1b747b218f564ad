"""FakeCuda: puts the fake GPU in torch's place, in all threads."""

import contextlib
import dataclasses
import functools
import os
import threading
from types import SimpleNamespace

import kit.device.quick_interpreter  # noqa: F401
import pytest
import torch
import triton.runtime.interpreter as interpreter

from fake_cuda.allocator import Allocator
from fake_cuda.calls import Factories, TorchCalls
from fake_cuda.copies import LateCopies
from fake_cuda.graphs import FakeGraph, Recording, record
from fake_cuda.streams import FakeEvent, FakeStream, Order
from fake_cuda.tensors import DeviceTensor, PinnedTensor, Present, address_of, all_plain
from lullm.units import GIB

TOTAL_BYTES = 16 * GIB


class FakeCuda:
    """One device. Use it as a context; the `driver` is tests/arena's.

    Args:
        index: of the device that tensors are on; every thread starts with device 0 as its current one.
        num_multiprocessors: 4, so that toys have several splits.
        faults: a list that gets them; None: a new one.

    Attributes:
        copies: ('to device' or 'to host', bytes, whether the host's side is pinned) of every copy.
        num_waits: how often the host has waited. num_replays: of recorded graphs. num_launches: of kernels.
        faults: what a GPU would have done wrong without a word, with the place in the code.
    """

    def __init__(self, driver, index=0, num_multiprocessors=4, faults=None):
        self.driver, self.device = driver, torch.device("cuda", index)
        self.copies, self.faults = [], [] if faults is None else faults
        self.num_waits = self.num_replays = self.num_launches = 0
        self.allocator = Allocator()
        self.late = LateCopies(self.faults)
        self.order = Order(self.faults, self.late)
        self.calls = TorchCalls(self)
        self.recording = None
        self.sync_debug_mode = "default"
        self._num_multiprocessors = num_multiprocessors
        self._thread = threading.local()
        self._arenas = {}  # address -> bytes that are mapped there

    # -- of the calling thread -------------------------------------------------------------------------------------

    @property
    def current_device(self):
        return getattr(self._thread, "device", 0)

    @property
    def stream(self):
        return getattr(self._thread, "stream", None) or self.default_stream

    @contextlib.contextmanager
    def use_device(self, device):
        before = self.current_device
        self.set_device(device)
        try:
            yield
        finally:
            self._thread.device = before

    def set_device(self, device):
        self._thread.device = device if isinstance(device, int) else torch.device(device).index

    @contextlib.contextmanager
    def use_stream(self, stream):
        before = self.stream
        self._thread.stream = stream
        try:
            yield
        finally:
            self._thread.stream = before

    def new_stream(self):
        return FakeStream()

    # -- work ------------------------------------------------------------------------------------------------------

    @property
    def is_capturing(self):
        """In this thread."""
        return self.recording is not None and self.recording.thread == threading.get_ident()

    def begin_capture(self, graph, pool):
        if self.recording is not None:
            raise RuntimeError("CUDA error: another capture is under way in this process; torch has one at a time")
        if graph.recording is not None:
            raise RuntimeError("this graph was recorded already")
        self.synchronize()
        self.allocator.empty_cache()
        self.allocator.begin(pool, graph)
        graph.pool = pool
        self.recording = Recording(pool, threading.get_ident())

    def refuse_hidden_wait(self, what):
        """Raises RuntimeError: the host would wait unasked, and `set_sync_debug_mode` forbids it."""
        if self.sync_debug_mode == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation ({what})")

    def wait(self, seen):
        """The host waits for what was seen."""
        if self.is_capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing (the host would wait)")
        self.num_waits += 1
        self.order.learn(seen)

    def synchronize(self, device=None):
        self.wait({stream: stream.count for stream in self.order.streams})

    def touch(self, read, written):
        """Work of the current stream reads and writes these storages."""
        if not self.is_capturing:  # else it is only written down
            self.order.touch(self.stream, read, written)

    def allocated(self, storage):
        self.order.forget(storage.data_ptr())
        self.allocator.note(storage, self.recording.pool if self.is_capturing else None)

    def launch(self, executor, original, args, kwargs):
        """A kernel over these arguments, all of which it may read and write."""
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        if not all(isinstance(t, DeviceTensor) for t in tensors):
            raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        if self.current_device != self.device.index:
            raise ValueError(f"a kernel is launched on device {self.current_device}, which cannot see its arguments")
        self.num_launches += 1
        plain_args, plain_kwargs = all_plain((args, kwargs))
        self.touch((), [address_of(t) for t in tensors])
        grid = executor.grid if isinstance(executor.grid, tuple) else tuple(executor.grid)

        def run(*args, **kwargs):
            executor.grid = grid
            with torch._C.DisableTorchFunctionSubclass():
                original(executor, *args, **kwargs)

        run(*plain_args, **plain_kwargs)
        if self.is_capturing:
            self.recording.add(run, plain_args, plain_kwargs, [], (), tensors)

    # -- memory ----------------------------------------------------------------------------------------------------

    def mem_get_info(self, device=None):
        return TOTAL_BYTES - sum(list(self._arenas.values())) - self.allocator.reserved, TOTAL_BYTES

    def _backend(self, index=0):
        backend = self.driver.build("cuda", device_index=index)

        def create_and_map(address, num_bytes):
            handle = backend.create_and_map(address, num_bytes)
            self._arenas[address] = num_bytes
            return handle

        def unmap_and_release(address, num_bytes, handle):
            if self.is_capturing:
                self.order.note("memory is unmapped while a graph is recorded")
            if not self.order.is_idle(address, num_bytes):
                self.order.note("memory is unmapped while work may use it")
            backend.unmap_and_release(address, num_bytes, handle)
            self._arenas.pop(address, None)

        return dataclasses.replace(
            backend, name="CUDA", create_and_map=create_and_map, unmap_and_release=unmap_and_release
        )

    # -- in torch's place ------------------------------------------------------------------------------------------

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        Present.gpu = self
        self.default_stream = FakeStream()
        for name, value in self._names().items():
            self._patch.setattr(f"torch.cuda.{name}", value)
        self._patch.setattr("torch.version.cuda", "13.0")
        self._patch.setattr("torch.Generator", HostGenerator)
        self._patch.setattr("torch.profiler.supported_activities", set)
        self._patch_threads()
        self._patch_kernels(self._patch.setattr)
        self._patch_arenas(self._patch.setattr)
        self._mode = Factories()
        self._mode.__enter__()
        return self

    def __exit__(self, *error):
        self.order.learn_all()  # all copies land, and are compared
        self._mode.__exit__(*error)
        self._patch.undo()
        Present.gpu = None
        _forget_facts()

    def _names(self):
        facts = SimpleNamespace(
            multi_processor_count=self._num_multiprocessors, name="a fake", total_memory=TOTAL_BYTES,
            L2_cache_size=1 << 20, uuid=f"{os.getpid()}-{self.device.index}",
        )  # fmt: skip
        return {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "init": lambda: None,
            "_lazy_init": lambda: None,
            "current_device": lambda: self.current_device,
            "device_count": lambda: self.device.index + 1,
            "set_device": self.set_device,
            "device": self.use_device,
            "stream": self.use_stream,
            "Stream": FakeStream,
            "Event": FakeEvent,
            "CUDAGraph": FakeGraph,
            "graph": record,
            "graph_pool_handle": object,
            "default_stream": lambda device=None: self.default_stream,
            "current_stream": lambda device=None: self.stream,
            "is_current_stream_capturing": lambda: self.is_capturing,
            "synchronize": self.synchronize,
            "set_sync_debug_mode": lambda mode: setattr(self, "sync_debug_mode", mode),
            "_sleep": lambda cycles: None,
            "mem_get_info": self.mem_get_info,
            "memory_allocated": lambda device=None: self.allocator.allocated,
            "max_memory_allocated": lambda device=None: self.allocator.peak,
            "memory_reserved": lambda device=None: self.allocator.reserved,
            "reset_peak_memory_stats": lambda device=None: self.allocator.reset_peak(),
            "empty_cache": self.allocator.empty_cache,
            "get_device_name": lambda device=None: "a fake",
            "get_device_capability": lambda device=None: (9, 0),
            "get_device_properties": lambda device=None: facts,
            "cudart": lambda: SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0),
        }

    def _patch_threads(self):
        """Torch's modes are a thread's own: every new one enters it."""
        start = threading.Thread.start

        def start_inside(thread):
            run = thread.run

            def run_inside():
                with Factories():
                    run()

            thread.run = run_inside
            start(thread)

        self._patch.setattr(threading.Thread, "start", start_inside)

    def _patch_kernels(self, patch):
        from lullm.ops.triton import block_copy, device

        original = interpreter.GridExecutor.__call__
        patch(interpreter.GridExecutor, "__call__", lambda e, *a, **k: self.launch(e, original, a, k))
        for module in (device, block_copy):
            patch(module, "launch_device", lambda: self.device)
        patch(block_copy, "IS_INTERPRETED", False)
        _forget_facts()

    def _patch_arenas(self, patch):
        from lullm.arena.arena import Arena
        from lullm.device import cuda as cuda_device

        empty, same_memory = Arena.empty, cuda_device.same_memory

        def as_device(arena, shape, dtype):
            with torch._C.DisableTorchFunction():
                tensor = empty(arena, shape, dtype)
            if isinstance(arena, cuda_device.PinnedArena):
                return tensor.as_subclass(PinnedTensor)
            if arena.backend.name != "CUDA":
                return tensor
            self.order.forget(address_of(tensor))
            return tensor.as_subclass(DeviceTensor)

        patch(Arena, "empty", as_device)
        patch(cuda_device, "same_memory", lambda *args: same_memory(*args).as_subclass(DeviceTensor))
        patch(cuda_device, "cuda_backend", self._backend)


class HostGenerator(torch.Generator):
    """Of numbers for any device: the fake one has none of its own."""

    def __new__(cls, device=None):
        return super().__new__(cls)


def _forget_facts():
    """What the kernels keep of a device belongs to another one now."""
    from lullm.ops.triton import device, tile

    for module in (device, tile):
        for found in vars(module).values():
            if isinstance(found, functools._lru_cache_wrapper):
                found.cache_clear()
