"""DecodeGraphs: a whole decode step recorded once per batch size and replayed, so that no kernel waits for the host.

A step's kernels read and write the same addresses every time (`Staging.decode_batch`), so that a recording stays right
when the contents change, and after a sleep, since arenas wake up at the addresses they had. Batches are filled up to
the next size; the rows beyond have slot -1 and context length 0: they write nowhere and are dropped. Without graphs
(`enforce_eager`) the same function runs on the same padded batch, so both give the same bits.

All recordings share one pool of memory, which fits since the largest is made first and only one runs at a time. The
pool comes from torch's allocator, not from an arena: it stays while the engine sleeps.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from lullm.log import get_logger
from lullm.units import format_bytes
from lullm.worker.device import Device

logger = get_logger(__name__)


class DecodeOutput(NamedTuple):
    """What a decode step of a size leaves: at the same addresses every time if it is replayed."""

    logits: Tensor  # [size, V] float32
    tokens: Tensor  # [size] int64, drawn from them (greedily, if the ops cannot draw)


def decode_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, then the multiples of 8, up to `max_num_seqs`, which is always one of them."""
    sizes = {size for size in (1, 2, 4) if size < max_num_seqs}
    return sorted(sizes | set(range(8, max_num_seqs, 8)) | {max_num_seqs})


class DecodeGraphs:
    """Runs decode steps of fixed sizes, recorded or as they are.

    Args:
        compute: runs a step of a size over the staged batch. It must not wait for the device, and must touch no memory
            but what it allocates and what stays.
    """

    def __init__(self, device: Device, compute: Callable[[int], DecodeOutput]):
        self._device = device
        self._compute = compute
        self._replays: dict[int, Callable[[], DecodeOutput]] = {}

    def capture(self, sizes: Sequence[int], clear: Callable[[int], None]) -> None:
        """Record all sizes, large to small. Blocking: seconds. `clear` stages a batch that is harmless to compute."""
        started, free = time.perf_counter(), self._device.memory_info().free_bytes
        for size in sorted(sizes, reverse=True):
            # Kernels are compiled and libraries take their workspaces now: neither can be recorded.
            clear(size)
            self._device.start(lambda size=size: self._compute(size)).result()
            self._replays[size] = self._device.capture(lambda size=size: self._compute(size))
        self._device.synchronize()
        logger.info(
            "graphs: %d sizes up to %d recorded in %.1f s, %s",
            len(sizes),
            max(sizes),
            time.perf_counter() - started,
            format_bytes(max(free - self._device.memory_info().free_bytes, 0)),
        )

    def run(self, size: int) -> DecodeOutput:
        """The staged batch, filled up to `size`. Does not wait for the device."""
        replay = self._replays.get(size)
        return self._compute(size) if replay is None else replay()

    @property
    def sizes(self) -> list[int]:
        """Those that are recorded."""
        return sorted(self._replays)
