"""DecodeGraphs: records a whole decode step once per batch size and replays it, so that no kernel waits for the host.

A step's kernels use the same addresses every time. So a recording stays valid when the contents change, and after a
sleep, since arenas wake up at the same addresses. Without graphs (`enforce_eager`) the same kernels run one by one and
give the same bits. The two kinds of device differ:

A GPU records CUDA graphs, all before the first request, since recording takes seconds. Batches are padded to the next
size (`Staging`). The padding rows have slot -1 and context length 0: they write nothing and are dropped. All recordings
share one pool of memory, which fits since the largest is made first and only one runs at a time. The pool comes from
torch's allocator, not from an arena: it stays while the engine sleeps.

A CPU records its native calls (`ops.cpu.recording`) and replays them in one call. It records a size when it first
occurs, and never pads a batch: recording computes that step, takes some 10 ms more, and keeps about 25 KB (28 layers;
with 256 sizes 6 MB). Results lie in a workspace that all recordings share, in an arena (`graphs`) that sleeps with the
KV cache. A computation that includes an operation of torch cannot be recorded: then every step stays eager.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from lullm.arena.workspace import Workspace
from lullm.config.model import ModelConfig
from lullm.device.device import Captured, Device
from lullm.log import get_logger
from lullm.units import MIB, format_bytes

logger = get_logger(__name__)


class DecodeOutput(NamedTuple):
    """The results of a decode step; replays write them to the same addresses."""

    logits: Tensor  # [R, V] float32, of the rows that this worker draws for (`DrawShare`): all, if it is alone
    tokens: Tensor  # [R] int64, drawn from them (greedily, if the ops cannot draw)


class StreamOutput(NamedTuple):
    """The results of a decode step on a stage of a pipeline that is not the last."""

    stream: Tensor  # [size, H], the next stage's input


Output = TypeVar("Output", bound=tuple[Tensor, ...])


def decode_sizes(device: Device, max_num_seqs: int) -> Sequence[int]:
    """The sizes of decode batches, ascending; the largest is `max_num_seqs`.

    All sizes; on a device that records them ahead 1, 2, 4, 8, and the multiples of 8.
    """
    if not device.records_ahead:
        return range(1, max_num_seqs + 1)
    sizes = {size for size in (1, 2, 4) if size < max_num_seqs}
    return sorted(sizes | set(range(8, max_num_seqs, 8)) | {max_num_seqs})


def workspace_bytes(config: ModelConfig, max_num_seqs: int) -> int:
    """An upper bound for the results of the largest step that exist at the same time. Untouched pages take no memory.

    The logits in two types, and a dozen rows as wide as the widest of a layer in float32.
    """
    of_layers = [config.kv_heads(layer) for layer in range(len(config.layer_kinds))]
    num_queries = max(config.num_attention_heads, *config.family.query_heads, 0)
    heads = max(num_queries * heads.head_dim + 2 * heads.size for heads in of_layers)
    widest = max(config.stream_size, config.family.widest_row, heads)
    return MIB + max_num_seqs * (8 * config.vocab_size + 12 * 4 * widest)


class DecodeGraphs(Generic[Output]):
    """Runs decode steps of fixed sizes, recorded or eager.

    Args:
        compute: runs a step of a size over the staged batch. It must not wait for the device. It may touch only memory
            that it allocates, and memory at fixed addresses.
        workspace: memory for results, on a device that records sizes as they occur. None: only `capture` records.

    Attributes:
        refusal: why the device has refused a recording, so that all steps are eager; None: it has not.
    """

    def __init__(self, device: Device, compute: Callable[[int], Output], workspace: Workspace | None = None):
        self._device = device
        self._compute = compute
        self._workspace = workspace
        self._captured: dict[int, Captured[Output]] = {}
        self.refusal: str | None = None

    def capture(self, sizes: Sequence[int], clear: Callable[[int], None]) -> None:
        """Record all sizes, large to small. Blocking: seconds. `clear` stages a batch that writes nothing."""
        started, free = time.perf_counter(), self._device.memory_info().free_bytes
        for size in sorted(sizes, reverse=True):
            # Compile kernels and allocate the libraries' workspaces now: neither can be recorded.
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

    def run(self, size: int) -> Output:
        """Run the staged batch, padded to `size`. Does not wait for the device."""
        captured = self._captured.get(size)
        if captured is not None:
            captured.replay()
            return captured.output
        if self._workspace is None or self.refusal is not None:
            return self._compute(size)
        return self._record(size).output

    def _record(self, size: int) -> Captured[Output]:
        captured = self._device.capture(partial(self._compute, size), self._workspace)
        self.refusal = captured.refusal
        if captured.refusal is None:
            self._captured[size] = captured
        else:
            logger.debug("decode steps are not recorded: %s", captured.refusal)
        return captured

    def drop(self) -> None:
        """Drop all recordings, with the memory that only they use. Their results may not be used any more."""
        self._captured.clear()

    @property
    def sizes(self) -> list[int]:
        """The recorded sizes."""
        return sorted(self._captured)
