"""A device for tests: an accelerator whose memory is the host's, and whose work is done late, as a real one's is.

A `FakeDevice` records the calls it gets. Capturing runs the function, and replaying runs it again, on the same tensors
with their present contents.
"""

import dataclasses

import torch

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
        outcome = work()

        def replay():
            self.calls.append(("replay", None))
            for old, new in zip(outcome, work(), strict=True):
                old.copy_(new)

        return Captured(outcome, replay)

    def peak_bytes(self, work):
        work()
        return self.peaks.pop(0)

    def synchronize(self):
        self.calls.append(("synchronize", None))
        self.catch_up()


def reference_attention(q, cache, layout, scale, *extras):
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
            out[start:end] = REFERENCE_OPS.attention(q[start:end], cache, one, scale, *extras)
    return out


FAKE_OPS = dataclasses.replace(
    TORCH_CPU_OPS,
    rope_and_cache=REFERENCE_OPS.rope_and_cache,
    prepare_attention=lambda layout: layout,
    attention=reference_attention,
    is_recordable=True,
    index_dtype=torch.int32,
)
"""The ops of a fake accelerator."""
