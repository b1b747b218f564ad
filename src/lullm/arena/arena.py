"""Arena: memory for the tensors of one kind. The addresses stay; the memory behind them comes and goes."""

from collections.abc import Iterator, Sequence
from enum import Enum
from math import prod

import torch

from lullm.arena.address_range import AddressRange, ChunkState
from lullm.arena.backend import Backend
from lullm.arena.driver.dlpack import over_storage, view
from lullm.errors import CacheSizeError, LullmError, WakeUpError
from lullm.log import get_logger
from lullm.units import format_bytes, round_up

ALIGNMENT = 128
"""Bytes: two cache lines, so that the adjacent-line prefetcher never loads one line for two tensors."""

_MAX_BYTES = 1 << 62  # the largest pointer difference

logger = get_logger(__name__)


class ArenaState(Enum):
    """MAPPED <--map / release--> RELEASED; any --close--> CLOSED, for good. PARTLY: a driver refused some chunks."""

    MAPPED = "mapped"
    PARTLY = "partly"
    RELEASED = "released"
    CLOSED = "closed"


class Arena:
    """Memory of a back end for one kind of tensors (`tag`), cut into tensors from left to right.

    Starts mapped. One thread at a time may call it; any thread may drop a tensor cut from it.

    Args:
        backend: the kind of memory.
        tag: the kind of tensors ('weights', 'kv_cache'), for messages and logs.
        capacity_bytes: rounded up to the back end's granularity.
        chunk_bytes: size of the pieces that the driver maps, rounded up likewise; None: the back end's own.

    Raises:
        CacheSizeError: there is no room for an arena of this size.
        LullmError: the driver fails for another reason.
    """

    def __init__(self, backend: Backend, tag: str, capacity_bytes: int, chunk_bytes: int | None = None):
        if capacity_bytes < 1:
            raise CacheSizeError(f"an arena needs at least one byte, {tag!r} asks for {capacity_bytes}")
        if capacity_bytes > _MAX_BYTES:
            raise CacheSizeError(f"cannot reserve {capacity_bytes} bytes for {tag!r}: no machine has such addresses")
        if chunk_bytes is not None and chunk_bytes < 1:
            raise CacheSizeError(f"a chunk needs at least one byte, {tag!r} asks for {chunk_bytes}")
        self.backend = backend
        self.tag = tag
        self.capacity_bytes = round_up(capacity_bytes, backend.granularity)
        self.used_bytes = 0
        chunk_bytes = chunk_bytes or backend.chunk_bytes or self.capacity_bytes
        try:
            memory = AddressRange(backend, self.capacity_bytes, round_up(chunk_bytes, backend.granularity))
            memory.map(range(len(memory.chunks)))
        except LullmError as error:
            size = format_bytes(self.capacity_bytes)
            raise type(error)(f"no arena of {size} of {backend.name} memory for {tag!r}: {error}") from error
        self._memory: AddressRange | None = memory
        self.base_address = memory.address
        self.device = view(memory.address, 1, backend.dlpack_device, memory).device

    @property
    def mapped_bytes(self) -> int:
        """The most physical memory that the addresses may have now; on a host untouched pages have none."""
        return 0 if self._memory is None else self._memory.mapped_bytes

    @property
    def num_chunks(self) -> int:
        return 0 if self._memory is None else len(self._memory.chunks)

    @property
    def state(self) -> ArenaState:
        if self._memory is None:
            return ArenaState.CLOSED
        if self.mapped_bytes == self.capacity_bytes:
            return ArenaState.MAPPED
        return ArenaState.PARTLY if self.mapped_bytes else ArenaState.RELEASED

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor of the arena's memory, aligned to 128 bytes.

        Its contents are undefined on a device, and zeros on the host.

        Raises:
            CacheSizeError: it does not fit into the rest of the arena.
            LullmError: the arena is closed, or released there.
        """
        memory = self._open()
        num_elements = prod(shape)
        num_bytes = num_elements * dtype.itemsize
        if num_bytes == 0:
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)
        offset = round_up(self.used_bytes, ALIGNMENT)
        if offset + num_bytes > self.capacity_bytes:
            raise CacheSizeError(
                f"the arena {self.tag!r} is full: {format_bytes(num_bytes)} asked for, "
                f"{format_bytes(max(0, self.capacity_bytes - offset))} of {format_bytes(self.capacity_bytes)} left"
            )
        self.check_mapped(offset, num_bytes)
        flat = view(memory.address + offset, num_bytes, self.backend.dlpack_device, memory)
        self.used_bytes = offset + num_bytes
        return over_storage(flat, dtype, shape)

    def release(self) -> None:
        """Release the physical memory now; the addresses stay. Idempotent, blocking.

        No computation may still use the tensors. They lose their contents and keep their addresses. On a device they
        must not be touched before `map`. On the host they read as zeros, and a write brings memory back page by page.

        Raises:
            LullmError: the driver refuses some chunks, which stay mapped (`mapped_bytes`); the rest is released.
        """
        if self._memory is None:
            return
        try:
            self._memory.release(range(self.num_chunks))
        except LullmError as error:
            raise type(error)(f"the arena {self.tag!r} is not released: {error}") from error

    def map(self) -> None:
        """Put memory behind all addresses again. Idempotent, blocking.

        Raises:
            WakeUpError: the driver refuses; the arena is as before.
            LullmError: the arena is closed.
        """
        memory = self._open()
        try:
            memory.map(range(self.num_chunks))
        except LullmError as error:
            raise WakeUpError(f"the arena {self.tag!r} stays released: {error}") from error

    def map_in_parts(self) -> Iterator[int]:
        """As `map`, a chunk at a time; yields the number of bytes, from the start, that have memory by then.

        Raises:
            WakeUpError: the driver refuses; chunks mapped so far stay.
            LullmError: the arena is closed.
        """
        memory = self._open()
        for number, chunk in enumerate(memory.chunks):
            try:
                memory.map([number])
            except LullmError as error:
                done = f"{format_bytes(self.mapped_bytes)} of {format_bytes(self.capacity_bytes)} came back, then"
                raise WakeUpError(f"the arena {self.tag!r} stays released: {done} {error}") from error
            yield chunk.address + chunk.num_bytes - memory.address

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in the arena's addresses."""
        return 0 <= tensor.data_ptr() - self.base_address < self.capacity_bytes

    def check_mapped(self, offset: int, num_bytes: int) -> None:
        """Raises LullmError: some of these bytes have no memory now."""
        memory = self._open()
        if self.backend.faults_in:
            return
        if any(memory.chunks[i].state is ChunkState.RELEASED for i in memory.chunk_ids(offset, num_bytes)):
            raise LullmError(f"the memory of the arena {self.tag!r} is released; map() it first")

    def close(self) -> None:
        """Release the memory now, for good. Idempotent.

        Tensors that are still alive lose their contents. On the host they read as zeros; on a device they must not be
        touched. The addresses are freed with the last of these tensors.
        """
        if self._memory is None:
            return
        memory, self._memory = self._memory, None
        try:
            memory.release(range(len(memory.chunks)))
        except LullmError as error:
            logger.error("closing the arena %r: %s", self.tag, error)

    def _open(self) -> AddressRange:
        if self._memory is None:
            raise LullmError(f"the arena {self.tag!r} is closed")
        return self._memory
