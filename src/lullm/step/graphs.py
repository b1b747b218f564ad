"""DecodeGraphs: a whole decode step recorded once per batch size and replayed, so that no kernel waits for the host.

A step's kernels read and write the same addresses every time, so that a recording stays right when the contents change,
and after a sleep, since arenas wake up at the addresses they had. Without graphs (`enforce_eager`) the same kernels run
one by one and give the same bits. Two kinds of device do it each in its own way:

A GPU records CUDA graphs, all before the first request, since recording takes seconds. Batches are filled up to the
next size (`Staging`). The rows beyond have slot -1 and context length 0: they write nowhere and are dropped. All
recordings share one pool of memory, which fits since the largest is made first and only one runs at a time. The pool
comes from torch's allocator, not from an arena: it stays while the engine sleeps.

A CPU writes down its native calls (`ops.cpu.recording`) and makes them all in one. It records a size when it first
meets it, and never fills up: recording is computing that step, plus some 10 ms, and keeps about 25 KB (28 layers; with
256 sizes 6 MB). Results lie in a workspace that all recordings share, in an arena (`graphs`) that sleeps with the KV
cache. A computation with an operation in between that is torch's, not native, is refused when it is first recorded:
then every step stays eager.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from lullm.arena.workspace import Workspace
from lullm.config.model import ModelConfig
from lullm.device.device import Captured, Device
from lullm.log import get_logger
from lullm.units import MIB, format_bytes

logger = get_logger(__name__)


class DecodeOutput(NamedTuple):
    """What a decode step of a size leaves: at the same addresses every time if it is replayed."""

    logits: Tensor  # [size, V] float32
    tokens: Tensor  # [size] int64, drawn from them (greedily, if the ops cannot draw)


def decode_sizes(device: Device, max_num_seqs: int) -> Sequence[int]:
    """The sizes that batches of decodes have, ascending; the largest is `max_num_seqs`.

    All of them, or, on a device that records them ahead, 1, 2, 4, 8, and the multiples of 8.
    """
    if not device.records_ahead:
        return range(1, max_num_seqs + 1)
    sizes = {size for size in (1, 2, 4) if size < max_num_seqs}
    return sorted(sizes | set(range(8, max_num_seqs, 8)) | {max_num_seqs})


def workspace_bytes(config: ModelConfig, max_num_seqs: int) -> int:
    """More than the results of the largest step that are there at the same time; what is not touched takes no memory.

    The logits in two types, and a dozen rows as wide as the widest of a layer in float32.
    """
    heads = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
    widest = max(config.hidden_size, config.family.widest_row, heads)
    return MIB + max_num_seqs * (8 * config.vocab_size + 12 * 4 * widest)


class DecodeGraphs:
    """Runs decode steps of fixed sizes, recorded or as they are.

    Args:
        compute: runs a step of a size over the staged batch. It must not wait for the device, and must touch no memory
            but what it allocates and what stays.
        workspace: sizes are recorded as they come, with results in here; None: those that `capture` has recorded.

    Attributes:
        refusal: why nothing is recorded any more, after a device has refused once.
    """

    def __init__(self, device: Device, compute: Callable[[int], DecodeOutput], workspace: Workspace | None = None):
        self._device = device
        self._compute = compute
        self._workspace = workspace
        self._captured: dict[int, Captured[DecodeOutput]] = {}
        self.refusal: str | None = None

    def capture(self, sizes: Sequence[int], clear: Callable[[int], None]) -> None:
        """Record all sizes, large to small. Blocking: seconds. `clear` stages a batch that is harmless to compute."""
        started, free = time.perf_counter(), self._device.memory_info().free_bytes
        for size in sorted(sizes, reverse=True):
            # Kernels are compiled and libraries take their workspaces now: neither can be recorded.
            clear(size)
            self._device.start(partial(self._compute, size)).result()
            self._record(size)
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
        captured = self._captured.get(size)
        if captured is not None:
            captured.replay()
            return captured.output
        if self._workspace is None or self.refusal is not None:
            return self._compute(size)
        return self._record(size).output

    def _record(self, size: int) -> Captured[DecodeOutput]:
        captured = self._device.capture(lambda: self._compute(size), self._workspace)
        self.refusal = captured.refusal
        if captured.refusal is None:
            self._captured[size] = captured
        else:
            logger.debug("decode steps are not recorded: %s", captured.refusal)
        return captured

    @property
    def sizes(self) -> list[int]:
        """Those that are recorded."""
        return sorted(self._captured)
