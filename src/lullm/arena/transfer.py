"""Transfers: an arena's bytes to host memory and back, piece by piece, so that copying and the host's work overlap.

With two buffers one piece is on its way while the caller hashes or writes the other. Buffers that together are as
large as the arena (`backup.split(...)`) are never used twice, and keep all of it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from lullm.arena.arena import Arena
from lullm.arena.backend import CopyKind
from lullm.errors import LullmError

Span = tuple[int, int]
"""(offset from `base_address`, num_bytes)."""


def copy_out(
    arena: Arena,
    buffers: Sequence[torch.Tensor],
    take: Callable[[int, torch.Tensor], None],
    spans: Iterable[Span] | None = None,
) -> None:
    """Copy an arena's contents to host memory, in order. Blocking.

    Whatever computes on the arena must be done (`torch.accelerator.synchronize()`): the copies run on a stream of
    their own.

    Args:
        buffers: CPU tensors of uint8, used in turn; piece i is as large as its buffer. Pinned where the
            arena is on a device: CUDA and HIP copy to others, too, but without overlap; Ascend does not.
        take: called with (offset, the bytes) of each piece once it has arrived; the bytes are a view of a buffer that
            the piece after next overwrites (with two buffers). What it raises ends the copy and is passed on.
        spans: which parts; None: all that is in use.

    Raises:
        LullmError: a span that is not in the arena or is released, unusable buffers, or the driver fails.
    """
    pieces = _pieces(arena, buffers, spans)
    stream = arena.backend.open_stream()
    in_flight: deque[tuple[int, int, torch.Tensor]] = deque()

    def land() -> None:
        mark, offset, buffer = in_flight.popleft()
        stream.wait(mark)
        take(offset, buffer)

    try:
        for offset, buffer in pieces:
            if len(in_flight) == len(buffers):
                land()
            source = arena.base_address + offset
            arena.backend.copy(buffer.data_ptr(), source, buffer.numel(), CopyKind.TO_HOST, stream.handle)
            in_flight.append((stream.mark(), offset, buffer))
        while in_flight:
            land()
    finally:
        stream.close()


def copy_in(
    arena: Arena,
    buffers: Sequence[torch.Tensor],
    give: Callable[[int, torch.Tensor], None],
    spans: Iterable[Span] | None = None,
) -> None:
    """Copy host memory into an arena, in order: `copy_out` the other way. Blocking until all of it has arrived.

    Args:
        give: called with (offset, a view of a buffer) of each piece, to fill it; the piece leaves when it returns.
    """
    pieces = _pieces(arena, buffers, spans)
    stream = arena.backend.open_stream()
    in_flight: deque[int] = deque()
    try:
        for offset, buffer in pieces:
            if len(in_flight) == len(buffers):
                stream.wait(in_flight.popleft())
            give(offset, buffer)
            target = arena.base_address + offset
            arena.backend.copy(target, buffer.data_ptr(), buffer.numel(), CopyKind.TO_ARENA, stream.handle)
            in_flight.append(stream.mark())
        while in_flight:
            stream.wait(in_flight.popleft())
    finally:
        stream.close()


def _pieces(
    arena: Arena, buffers: Sequence[torch.Tensor], spans: Iterable[Span] | None
) -> Iterator[tuple[int, torch.Tensor]]:
    """(offset, the part of a buffer that holds this piece), after checking everything."""
    for buffer in buffers:
        if (
            buffer.device.type != "cpu"
            or buffer.dtype != torch.uint8
            or buffer.dim() != 1
            or not buffer.is_contiguous()
        ):
            raise LullmError("buffers of a transfer are flat contiguous CPU tensors of uint8")
    if not buffers or any(buffer.numel() == 0 for buffer in buffers):
        raise LullmError("a transfer needs at least one buffer, and none of them empty")
    wanted = [(0, arena.used_bytes)] if spans is None else list(spans)
    for offset, num_bytes in wanted:
        if offset < 0 or num_bytes < 0 or offset + num_bytes > arena.capacity_bytes:
            raise LullmError(f"bytes {offset} to {offset + num_bytes} are not in the arena {arena.tag!r}")
        arena.check_mapped(offset, num_bytes)
    return _cut(wanted, buffers)


def _cut(spans: Iterable[Span], buffers: Sequence[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    turn = 0
    for offset, num_bytes in spans:
        end = offset + num_bytes
        while offset < end:
            buffer = buffers[turn % len(buffers)]
            size = min(buffer.numel(), end - offset)
            yield offset, buffer[:size]
            offset, turn = offset + size, turn + 1
