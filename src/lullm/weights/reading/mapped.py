"""MappedWeights: matrices that steps read from the checkpoint's mapped files until they are packed in their place.

New memory is slow where a virtual machine's host must find it, and the checkpoint's pages are in memory already. So the
first steps read matrices there, and threads pack them into their place meanwhile: they settle. The native ops pack the
same panels for each product until then (`csrc/mapped.h`), so results have the same bits.
"""

import ctypes
import threading
import time
from collections.abc import Iterator

from torch import Tensor

from lullm.log import get_logger
from lullm.ops.cpu.native import DTYPES
from lullm.ops.cpu.recording import call
from lullm.ops.quantized.weight import PANEL_ROWS
from lullm.units import MIB, format_bytes
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.packing import packed_parameters
from lullm.weights.rows.place import PlainRows, Rows
from lullm.weights.target import Loadable, WeightTarget

logger = get_logger(__name__)

LEAST_BYTES = 128 * MIB
"""The size from which a model is mapped: smaller ones are read within 50 ms."""
_UNIT_BYTES = 64
"""Rows of a packed matrix are multiples of it."""
_WAIT_S = 0.3
"""Before the threads begin: a script's first request comes at once, and its first token should not wait for memory."""


class MappedWeights:
    """Matrices of a model that have not settled. All methods from one thread, between steps.

    The loader offers tensors (`take`) and then gets back those of matrices of which it has others to copy
    (`left_over`). From `begin` on native ops read the matrices. `settle` waits until they are in their place.
    """

    def __init__(self, model: Loadable):
        self._places = {parameter.data_ptr(): parameter for parameter in packed_parameters(model)}
        self._taken: dict[int, list[tuple[PlainRows, Tensor]]] = {}
        self._goes_on = ctypes.c_int(1)
        self._is_stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices whose memory may not be there yet."""
        return sum(source.nbytes for parts in self._taken.values() for _, source in parts)

    def take(self, target: WeightTarget, values: Tensor | EncodedTensor) -> bool:
        """Leave this tensor in its file. False: it must be copied: it is no matrix of whole panels, or differs."""
        rows = target.rows
        if self._is_closed or not isinstance(rows, PlainRows) or not isinstance(values, Tensor):
            return False
        [parameter] = target.parameters.values()
        at = parameter.data_ptr()
        if at not in self._places or rows.scale != 1.0 or rows.offset or values.dtype != parameter.dtype:
            return False
        row_bytes = parameter.shape[1] * parameter.itemsize
        starts_panel = (rows.tensor.data_ptr() - at) % (PANEL_ROWS * row_bytes) == 0
        is_whole = starts_panel and len(values) % PANEL_ROWS == 0 and row_bytes % _UNIT_BYTES == 0
        if parameter.dtype not in DTYPES or not is_whole or not values.is_contiguous():
            return False
        self._taken.setdefault(at, []).append((rows, values))
        return True

    def left_over(self) -> Iterator[tuple[Rows, Tensor]]:
        """Tensors of matrices that were not taken whole; they must be copied."""
        for at, parts in list(self._taken.items()):
            if sum(len(source) for _, source in parts) < len(self._places[at]):
                yield from self._taken.pop(at)

    def holds(self, parameter: Tensor) -> bool:
        """Whether native ops know where the rows of this parameter lie."""
        return parameter.data_ptr() in self._taken

    def begin(self) -> None:
        """From now on native ops read the matrices in their files."""
        for rows, source in self._parts():
            call("lullm_map_rows", rows.tensor, source, *source.shape, DTYPES[source.dtype])
        logger.debug("weights: %s are read from the mapped files", format_bytes(self.num_bytes))

    def settle_behind(self, num_threads: int) -> None:
        """Begin to pack the matrices in their place, on threads of their own, beside steps."""
        if self._taken and not self._threads:
            self._threads = [
                threading.Thread(target=self._settle_later, name="lullm-settle", daemon=True)
                for _ in range(num_threads)
            ]
            for thread in self._threads:
                thread.start()

    @property
    def is_settled(self) -> bool:
        """Whether the threads of `settle_behind` are done."""
        return bool(self._threads) and not any(thread.is_alive() for thread in self._threads)

    def settle(self) -> None:
        """Pack all matrices in their place. Blocking; new memory may take seconds per gigabyte."""
        self._stop()
        self._goes_on.value = 1
        self._settle(True)
        self.close()

    def close(self) -> None:
        """Forget the files; what has not settled is lost. Idempotent."""
        self._stop()
        self._is_closed = True
        for rows, _ in self._parts():
            call("lullm_forget_rows", rows.tensor)
        self._taken.clear()

    def _settle_later(self) -> None:
        if not self._is_stopped.wait(_WAIT_S):
            self._settle(False)

    def _settle(self, on_all_threads: bool) -> None:
        started = time.perf_counter()
        for rows, _ in self._parts():
            call("lullm_settle_rows", rows.tensor, ctypes.byref(self._goes_on), on_all_threads)
        if self._goes_on.value:
            logger.debug("weights: settled in %.1f s", time.perf_counter() - started)

    def _stop(self) -> None:
        self._goes_on.value = 0
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()

    def _parts(self) -> list[tuple[PlainRows, Tensor]]:
        return [part for parts in self._taken.values() for part in parts]
