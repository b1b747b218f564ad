"""A GPU for tests: `torch.cuda` and the driver over the host's memory, with kernels run by Triton's interpreter.

`FakeCuda` replaces the functions through which code uses a GPU, so that `device='cuda'` runs without changes:
`CudaDevice`, staging, graphs, arenas, benchmarks. A tensor on the device is a `DeviceTensor`, a subclass of a tensor of
the host, through which every torch function goes. It refuses what a GPU refuses:

- tensors of the device and of the host do not mix, and a kernel takes none of the host's;
- while a graph is recorded, waits and copies from unpinned memory are errors; a replay runs the recorded functions
  again, on the same memory;
- a stream that uses memory without waiting for the stream that has written it is a race (`races`).

Work runs at once. `copies` and `num_waits` count the exchanges between host and device.
"""

import contextlib
import dataclasses
import time
import traceback
import weakref
from types import SimpleNamespace

import interpreter_patch  # noqa: F401
import pytest
import torch
import triton.runtime.interpreter as interpreter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from lullm.units import GIB

DEVICE = torch.device("cuda", 0)
TOTAL_BYTES = 16 * GIB
WAITING = {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero", "masked_select", "unique",
           "equal", "allclose", "is_nonzero", "numpy", "__array__", "__repr__", "__format__", "__contains__",
           "__torch_testing_to_host__"}  # fmt: skip
STAYING = {"nonzero", "masked_select", "unique"}  # of those: the host waits for a size, the result stays on the device
MIXING = {"copy_", "to", "__getitem__", "__setitem__", "cpu", "cuda", "set_", "isfinite"}


class DeviceTensor(torch.Tensor):
    """On the fake device."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return FakeCuda.current.call(func, args, kwargs or {})


class PinnedTensor(torch.Tensor):
    """Of host memory that a copy to the device need not wait for."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return FakeCuda.current.call(func, args, kwargs or {})


class FakeStream:
    """`seen`: per stream, how much of its work is known to be done before the next work of this one."""

    def __init__(self, *_, **__):
        self.seen = {}
        self.count = 0

    def wait_stream(self, other):
        _merge(self.seen, {**other.seen, other: other.count})

    def wait_event(self, event):
        _merge(self.seen, event.seen)

    def record_event(self, event=None):
        event = event or FakeEvent()
        event.record(self)
        return event

    def synchronize(self):
        FakeCuda.current.wait({**self.seen, self: self.count})


class FakeEvent:
    def __init__(self, enable_timing=False, **_):
        self.enable_timing, self.seen, self.at = enable_timing, None, 0.0

    def record(self, stream=None):
        stream = stream or FakeCuda.current.stream
        self.seen, self.at = {**stream.seen, stream: stream.count}, time.perf_counter()

    def synchronize(self):
        FakeCuda.current.wait(self.seen)

    def query(self):
        return True

    def elapsed_time(self, end):
        assert self.enable_timing and end.enable_timing and self.seen is not None and end.seen is not None
        return (end.at - self.at) * 1e3 + 1e-3


class FakeGraph:
    """What was recorded: functions, and what they gave; None until it is."""

    def __init__(self, keep_graph=False):
        self.calls = None

    def replay(self):
        assert self.calls is not None, "nothing was recorded"
        gpu = FakeCuda.current
        assert not gpu.is_capturing
        gpu.num_replays += 1
        with torch._C.DisableTorchFunctionSubclass():
            for run, outs, read, written in self.calls:
                gpu.touch(read, written)
                found = [t for t in tree_leaves(run()) if isinstance(t, torch.Tensor)]
                for old, new in zip(outs, found, strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def _merge(seen, other):
    for stream, count in other.items():
        seen[stream] = max(seen.get(stream, 0), count)


class _Factories(TorchFunctionMode):
    """Sees the functions that take no tensor. Of this thread only."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return FakeCuda.current.call(func, args, kwargs or {})


class FakeCuda:
    """One device. Use it as a context; the `driver` is tests/arena's.

    Attributes:
        copies: ('to device' or 'to host', bytes, whether the host's side is pinned) of every copy.
        num_waits: how often the host has waited. num_replays: of recorded graphs.
        races: what was touched by a stream that had not waited for its writer.
    """

    current = None

    def __init__(self, driver):
        self.driver = driver
        self.copies, self.races = [], []
        self.num_waits = self.num_replays = 0
        self.default_stream = self.stream = FakeStream()
        self.host_seen = {}
        self._last = {}  # address of a storage -> ((stream, count) of the last write, {stream: count} of reads since)
        self._recording = None
        self._arenas = weakref.WeakSet()

    # -- what torch's functions do ---------------------------------------------------------------------------------

    @property
    def is_capturing(self):
        return self._recording is not None

    def call(self, func, args, kwargs):
        name = getattr(func, "__name__", "")
        if name == "__get__":
            found = self._attribute(func.__self__.__name__, args[0])
            if found is not None:
                return found
        if name in ("is_pinned", "pin_memory") and args:
            return self._pin(name, args[0])
        leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        on_device = [t for t in leaves if isinstance(t, DeviceTensor)]
        wanted = self._wanted_device(name, args, kwargs)
        if not (on_device or wanted == DEVICE or kwargs.get("pin_memory") or any(_is_pinned(t) for t in leaves)):
            return func(*args, **kwargs)
        if on_device:
            self._check(name, args, kwargs, leaves, on_device)
        if name in ("to", "cpu", "cuda"):
            return self._move(name, args, kwargs, wanted)
        if name == "copy_":
            self._note_copy(args[1], args[0], bool(kwargs.get("non_blocking")))
        elif wanted is not None and wanted.type == "cuda" and name in ("tensor", "as_tensor"):
            self._copied("to device", 0, False)
        plain_args, plain_kwargs = tree_map_only((DeviceTensor, PinnedTensor), _plain, (args, kwargs))
        is_pinned = bool(plain_kwargs.pop("pin_memory", False))
        if "device" in plain_kwargs and wanted is not None:
            plain_kwargs["device"] = "cpu" if wanted.type == "cuda" else plain_kwargs["device"]
        is_inplace = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or "out" in kwargs
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*plain_args, **plain_kwargs)
        if name in WAITING or name == "__setitem__":
            if on_device:
                self._touch_all(on_device, args[:1] if name == "__setitem__" else ())
                if name == "__setitem__":
                    self._record(func, plain_args, plain_kwargs, (), on_device, args[:1])
            if on_device and name in STAYING:
                return tree_map_only(torch.Tensor, lambda tensor: tensor.as_subclass(DeviceTensor), out)
            return out
        if is_inplace and isinstance(out, torch.Tensor):
            target = kwargs.get("out", args[0] if args else None)
            written = [target] if isinstance(target, DeviceTensor) else []
            self._touch_all(on_device, written)
            self._record(func, plain_args, plain_kwargs, (), on_device, written)
            return target
        goes_to_device = wanted.type == "cuda" if wanted is not None else bool(on_device)
        if not goes_to_device and not is_pinned and not any(_is_pinned(t) for t in leaves):
            if on_device:
                self._touch_all(on_device, ())
            return out
        storages = {_storage(t) for t in leaves}

        def wrap(tensor):
            if goes_to_device:
                if _storage(tensor) not in storages:
                    self._last.pop(_storage(tensor), None)  # an address may have been another's before
                return tensor.as_subclass(DeviceTensor)
            pinned = is_pinned or _storage(tensor) in storages
            return tensor.as_subclass(PinnedTensor) if pinned else tensor

        found = tree_map_only(torch.Tensor, wrap, out)
        if goes_to_device:
            outs = [t for t in tree_leaves(found) if isinstance(t, DeviceTensor)]
            new = [t for t in outs if _storage(t) not in storages]
            self._touch_all(on_device, new)
            if new:
                self._record(func, plain_args, plain_kwargs, outs, on_device, new)
        return found

    def _attribute(self, name, tensor):
        if isinstance(tensor, DeviceTensor):
            return {"device": DEVICE, "is_cuda": True, "is_cpu": False}.get(name)
        return None

    def _pin(self, name, tensor):
        if name == "is_pinned":
            return isinstance(tensor, PinnedTensor)
        if isinstance(tensor, DeviceTensor):
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        return tensor if isinstance(tensor, PinnedTensor) else tensor.clone().as_subclass(PinnedTensor)

    def _wanted_device(self, name, args, kwargs):
        device = kwargs.get("device")
        if device is None and name == "to":
            device = next((a for a in args[1:] if isinstance(a, (str, torch.device))), None)
            other = next((a for a in args[1:] if isinstance(a, torch.Tensor)), None)
            device = other.device if other is not None else device
        if device is None:
            return DEVICE if name == "cuda" else None
        device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        return DEVICE if device.type == "cuda" else device

    def _move(self, name, args, kwargs, wanted):
        tensor, *rest = args
        was_on_device = isinstance(tensor, DeviceTensor)
        is_on_device = was_on_device if wanted is None and name == "to" else name == "cuda" or (
            wanted is not None and wanted.type == "cuda"
        )  # fmt: skip
        rest = [a.dtype if isinstance(a, torch.Tensor) else a for a in rest if not isinstance(a, (str, torch.device))]
        kwargs = {key: value for key, value in kwargs.items() if key != "device"}
        if was_on_device != is_on_device:
            self._note_copy(tensor, None if is_on_device else torch.empty(0), bool(kwargs.get("non_blocking")))
        plain = _plain(tensor)

        def run():
            moved = plain.to(*rest, **kwargs) if rest or kwargs else plain
            crosses = was_on_device != is_on_device and moved.data_ptr() == plain.data_ptr()
            return moved.clone() if crosses else moved

        with torch._C.DisableTorchFunctionSubclass():
            out = run()
        if _storage(out) == _storage(tensor):
            return tensor
        read = [tensor] if was_on_device else []
        if not is_on_device:
            self._touch_all(read, ())
            return out
        self._last.pop(_storage(out), None)
        out = out.as_subclass(DeviceTensor)
        self._touch_all(read, [out])
        self._record(run, (), {}, [out], read, [out])
        return out

    def _check(self, name, args, kwargs, leaves, on_device):
        strangers = [t for t in leaves if not isinstance(t, DeviceTensor) and t.dim()]
        if strangers and name not in MIXING:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cuda:0 and cpu")
        index = args[1] if name in ("__getitem__", "__setitem__") else ()
        parts = [t for t in tree_leaves(index) if isinstance(t, torch.Tensor)]
        if name in WAITING or (name == "__getitem__" and any(t.dtype == torch.bool and t.dim() for t in parts)):
            self.wait({**self.stream.seen, self.stream: self.stream.count})
        if any(not isinstance(t, DeviceTensor) for t in parts) or any(isinstance(i, list) for i in _tuple(index)):
            self._copied("to device", 0, False)

    def _note_copy(self, source, target, non_blocking):
        """A copy; `target` None: to new memory of the device."""
        to_device = target is None or isinstance(target, DeviceTensor)
        if not isinstance(source, torch.Tensor) or to_device == isinstance(source, DeviceTensor):
            return
        pinned = isinstance(source if to_device else target, PinnedTensor)
        self._copied("to device" if to_device else "to host", source.nbytes, pinned)
        if not to_device and not (pinned and non_blocking):
            self.wait({**self.stream.seen, self.stream: self.stream.count})

    def _copied(self, direction, num_bytes, is_pinned):
        self.copies.append((direction, num_bytes, is_pinned))
        if self.is_capturing and not is_pinned:
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing (a copy of pageable memory)"
            )

    def _record(self, func, args, kwargs, outs, read, written):
        if self.is_capturing:
            outs = [_plain(t) for t in outs]
            storages = [_storage(t) for t in read], [_storage(t) for t in written]
            self._recording.append((lambda: func(*args, **kwargs) if outs else (func(*args, **kwargs), ())[1],
                                    outs, *storages))  # fmt: skip

    # -- streams ---------------------------------------------------------------------------------------------------

    def wait(self, seen):
        """The host waits for what was seen."""
        if self.is_capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing (the host would wait)")
        self.num_waits += 1
        _merge(self.host_seen, seen)

    def _touch_all(self, read, written):
        self.touch([_storage(t) for t in read], [_storage(t) for t in written])

    def touch(self, read, written):
        """Work of the current stream reads and writes these storages."""
        if self.is_capturing:
            return  # it is only written down
        stream = self.stream
        _merge(stream.seen, self.host_seen)
        stream.count += 1
        now = stream, stream.count
        for address in {*read, *written}:
            write, reads = self._last.get(address, (None, {}))
            others = ([write] if write else []) + (list(reads.items()) if address in written else [])
            for other, count in others:
                if other is not stream and stream.seen.get(other, 0) < count:
                    self.races.append("".join(traceback.format_stack(limit=12)))
            self._last[address] = (now, {}) if address in written else (write, {**reads, stream: stream.count})

    # -- what torch.cuda is asked for ------------------------------------------------------------------------------

    def launch(self, executor, original, args, kwargs):
        """A kernel over these arguments, all of which it may read and write."""
        tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
        if not all(isinstance(t, DeviceTensor) for t in tensors):
            raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        plain, plain_kwargs = tree_map_only((DeviceTensor, PinnedTensor), _plain, (args, kwargs))
        storages = [_storage(t) for t in tensors]
        self.touch((), storages)

        def run():
            with torch._C.DisableTorchFunctionSubclass():
                original(executor, *plain, **plain_kwargs)

        run()
        if self.is_capturing:
            self._recording.append((run, [], (), storages))

    @contextlib.contextmanager
    def use_stream(self, stream):
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextlib.contextmanager
    def record(self, graph, pool=None, stream=None, capture_error_mode="global"):
        assert not self.is_capturing and graph.calls is None
        self.synchronize()
        with self.use_stream(stream or FakeStream()):
            self.stream.wait_stream(self.default_stream)
            self._recording = []
            try:
                yield
                graph.calls = self._recording
            finally:
                self._recording = None

    def synchronize(self, device=None):
        for stream in [s for s in {self.stream, self.default_stream, *self.host_seen} if s is not None]:
            self.wait({**stream.seen, stream: stream.count})
        for write, reads in self._last.values():
            _merge(self.host_seen, {**reads, **({write[0]: write[1]} if write else {})})

    def mem_get_info(self, device=None):
        return TOTAL_BYTES - sum(arena.mapped_bytes for arena in self._arenas), TOTAL_BYTES

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        patch = self._patch.setattr
        FakeCuda.current = self
        for name, value in {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "init": lambda: None,
            "_lazy_init": lambda: None,
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "set_device": lambda device: None,
            "device": lambda device: contextlib.nullcontext(),
            "stream": self.use_stream,
            "Stream": FakeStream,
            "Event": FakeEvent,
            "CUDAGraph": FakeGraph,
            "graph": self.record,
            "graph_pool_handle": object,
            "default_stream": lambda device=None: self.default_stream,
            "current_stream": lambda device=None: self.stream,
            "is_current_stream_capturing": lambda: self.is_capturing,
            "synchronize": self.synchronize,
            "mem_get_info": self.mem_get_info,
            "memory_allocated": lambda device=None: 0,
            "max_memory_allocated": lambda device=None: 0,
            "reset_peak_memory_stats": lambda device=None: None,
            "empty_cache": lambda: None,
            "get_device_name": lambda device=None: "a fake",
            "get_device_capability": lambda device=None: (9, 0),
            "get_device_properties": lambda device=None: SimpleNamespace(
                multi_processor_count=4, name="a fake", total_memory=TOTAL_BYTES, L2_cache_size=1 << 20
            ),
            "cudart": lambda: SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0),
        }.items():
            patch(f"torch.cuda.{name}", value)
        patch("torch.version.cuda", "13.0")
        self._patch_kernels(patch)
        self._patch_arenas(patch)
        self._mode = _Factories()
        self._mode.__enter__()
        return self

    def __exit__(self, *error):
        self._mode.__exit__(*error)
        self._patch.undo()
        FakeCuda.current = None

    def _patch_kernels(self, patch):
        from lullm.ops.triton import block_copy, device

        original = interpreter.GridExecutor.__call__
        patch(interpreter.GridExecutor, "__call__", lambda e, *a, **k: self.launch(e, original, a, k))
        for module in (device, block_copy):
            patch(module, "launch_device", lambda: DEVICE)
        patch(block_copy, "IS_INTERPRETED", False)

    def _patch_arenas(self, patch):
        from lullm.arena.arena import Arena
        from lullm.device import cuda as cuda_device

        empty, same_memory = Arena.empty, cuda_device.same_memory

        def as_device(arena, shape, dtype):
            with torch._C.DisableTorchFunction():
                tensor = empty(arena, shape, dtype)
            pinned = isinstance(arena, cuda_device.PinnedArena)
            if arena.backend.name == "CUDA":
                self._arenas.add(arena)
            kind = PinnedTensor if pinned else DeviceTensor if arena.backend.name == "CUDA" else torch.Tensor
            return tensor.as_subclass(kind)

        patch(Arena, "empty", as_device)
        patch(cuda_device, "same_memory", lambda *args: same_memory(*args).as_subclass(DeviceTensor))
        patch(cuda_device, "cuda_backend", self._backend)

    def _backend(self, index=0):
        return dataclasses.replace(self.driver.build("cuda", device_index=index), name="CUDA")


def _plain(tensor):
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def _storage(tensor):
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage().data_ptr()


def _is_pinned(tensor):
    return isinstance(tensor, PinnedTensor)


def _tuple(index):
    return index if isinstance(index, tuple) else (index,)
