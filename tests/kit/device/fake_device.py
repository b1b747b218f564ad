"""A device for tests: an accelerator whose memory is the host's, and whose work is done late, as a real one's is.

A `FakeDevice` records the calls it gets. Capturing writes down what the function launches (`Launches`): a replay runs
that again, on the same tensors with their present contents, and none of the function's own Python. What other
recordings have given is rubbish afterwards.
"""

import dataclasses
import functools
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from lullm.arena.host import HostArena
from lullm.device.cpu import CpuDevice
from lullm.device.device import Captured, MemoryInfo
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS
from lullm.units import GIB


class FakeWork:
    def __init__(self, device, work):
        self._device, self._work = device, work
        self.is_done = False

    def run(self):
        if not self.is_done:
            self.outcome, self.is_done = self._work(), True

    def result(self):
        self._device.catch_up(self)
        return self.outcome


class Launches(TorchDispatchMode):
    """What torch computes inside, and the kernels among it, with their arguments."""

    current = None

    def __init__(self):
        super().__init__()
        self.calls = []

    def __enter__(self):
        Launches.current = self
        return super().__enter__()

    def __exit__(self, *error):
        Launches.current = None
        return super().__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise RuntimeError("the host would wait inside a recording")
        return self.launch(func, args, kwargs or {})

    def launch(self, func, args, kwargs):
        with _disable_current_modes():
            outcome = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, tensors_of(outcome)))
        return outcome

    def replay(self):
        for func, args, kwargs, results in self.calls:
            for old, new in zip(results, tensors_of(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tensors_of(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def kernel(function):
    """A function that a recording keeps as one launch: it may look at its arguments."""

    @functools.wraps(function)
    def launched(*args, **kwargs):
        recording = Launches.current
        return function(*args, **kwargs) if recording is None else recording.launch(function, args, kwargs)

    return launched


def record_interpreted_kernels(patch):
    """Triton's kernels are launches, too."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is not None:
        patch.setattr(interpreter.GridExecutor, "__call__", kernel(interpreter.GridExecutor.__call__))


class FakeDevice(CpuDevice):
    """Work is done when a result is asked for, and all work before it; `calls` are (name, details) in order."""

    is_accelerator = True
    records_ahead = True

    def __init__(self, memory: MemoryInfo | None = None):
        self.calls = []
        self.memory = memory or MemoryInfo(8 * GIB, 10 * GIB)
        self.peaks = []
        self._queue = []
        self._late = []
        self._recorded = []  # what the recordings have given

    def memory_info(self):
        return self.memory

    def new_arena(self, tag, capacity_bytes):
        self.calls.append(("arena", tag))
        return HostArena(tag, capacity_bytes)

    def new_host_arena(self, tag, capacity_bytes):
        self.calls.append(("host arena", tag))
        return HostArena(tag, capacity_bytes)

    def start(self, work):
        self.calls.append(("start", None))
        self._queue.append(FakeWork(self, work))
        return self._queue[-1]

    def catch_up(self, last=None):
        while self._queue and (last is None or not last.is_done):
            self._queue.pop(0).run()

    def to_host(self, tensor):
        return tensor.clone()

    def on_side_stream(self, work):
        """Do the work as late as possible: when its result is asked for."""
        self.calls.append(("on_side_stream", None))
        self._late.append(work)

    def join_side_stream(self):
        self.calls.append(("join_side_stream", None))
        while self._late:
            self._late.pop(0)()

    def capture(self, work, workspace):
        self.calls.append(("capture", None))
        with pytest.MonkeyPatch.context() as patch:
            record_interpreted_kernels(patch)
            with Launches() as launches:
                outcome = work()
        self._recorded.append(outcome)

        def replay():
            self.calls.append(("replay", None))
            for other in self._recorded:
                for tensor in other if other is not outcome else ():
                    tensor.fill_(-7 if tensor.dtype == torch.int64 else torch.nan)
            launches.replay()

        return Captured(outcome, replay)

    def peak_bytes(self, work):
        work()
        return self.peaks.pop(0)

    def synchronize(self):
        self.calls.append(("synchronize", None))
        self.catch_up()


def reference_attention(q, cache, layout, scores):
    """The reference over a `DeviceLayout`; rows of padding give zeros."""
    starts, context_lens = layout.query_starts.tolist(), layout.context_lens.tolist()
    out = torch.zeros_like(q)
    for row, context_len in enumerate(context_lens):
        start, end = starts[row], starts[row + 1]
        assert end - start <= layout.max_query_len and context_len <= layout.max_context_len
        if context_len:
            one = AttentionLayout(
                [end - start],
                [context_len],
                layout.block_tables[row : row + 1].long(),
                layout.slot_mapping[start:end],
                layout.block_size,
                layout.window,
            )
            out[start:end] = REFERENCE_OPS.attention(q[start:end], cache, one, scores)
    return out


FAKE_OPS = dataclasses.replace(
    TORCH_CPU_OPS,
    rope_and_cache=kernel(REFERENCE_OPS.rope_and_cache),
    prepare_attention=lambda layout: layout,
    attention=kernel(reference_attention),
    is_recordable=True,
    index_dtype=torch.int32,
)
"""The ops of a fake accelerator."""
