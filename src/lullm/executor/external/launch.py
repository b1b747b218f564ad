"""How processes of a launcher find each other: by torchrun's variables, or a trainer's process group.

Neighbouring ranks form blocks of as many processes as a model has workers, and each block is an engine of its own.
"""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from lullm.collective.collective import Collective
from lullm.collective.message import gather_bytes, gather_from_workers
from lullm.collective.seat import Seat
from lullm.collective.torch_group import TorchGroup
from lullm.errors import ConfigError
from lullm.types.parallel.placement import Axis, Placement, placements
from lullm.types.parallel.rendezvous import DEFAULT_TIMEOUT, LocalFile, StoreAddress, Transport
from lullm.worker.meeting import Meeting, open_seat

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_Gather = Callable[[bytes], list[bytes]]
"""Gathers the bytes of all processes, by rank."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def open_launched_seat(tensor_size: int, pipeline_size: int, timeout: float) -> Seat:
    """The seat of this process, for tensors of CPUs. Blocking, until all processes of its block have called it.

    Args:
        timeout: seconds that one waits for another.

    Raises:
        ConfigError: this process was not started by a launcher, or the number of processes is no multiple of the
            workers.
        WorkerLostError: others have not come in time.
    """
    num_workers = tensor_size * pipeline_size
    if num_workers == 1:
        return Seat()
    with _block(num_workers) as group:
        place = placements(tensor_size, pipeline_size)[group.rank]
        return _meet(partial(gather_bytes, group), place, None, timeout)


def open_seat_of_gpus(words: Seat, timeout: float) -> Seat:
    """The same seat for tensors of GPUs. All processes of a model call it; they meet over `words`."""
    return _meet(partial(gather_from_workers, words), words.placement, "nccl", timeout)


def open_group_of_all(words: Seat, timeout: float) -> Collective:
    """A group of all processes of a model, of every stage. All of them call it."""
    place = words.placement
    in_a_line = placements(place.num_workers, 1)[place.rank]
    return _meet(partial(gather_from_workers, words), in_a_line, "gloo", timeout).tensor


def num_local_ranks(variables: Mapping[str, str] = os.environ) -> int:
    """The number of processes that the launcher has started on this host; 1 if unknown."""
    text = variables.get("LOCAL_WORLD_SIZE", "")
    return int(text) if text.isdecimal() and int(text) > 0 else 1


@contextmanager
def _block(num_workers: int) -> Iterator[TorchGroup]:
    """A group of the processes that share a model with this one, for the meeting only."""
    if distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
        firsts = range(0, _checked_size(size, num_workers), num_workers)
        # All processes make all groups: torch counts them.
        groups = [distributed.new_group(list(range(first, first + num_workers)), backend="gloo") for first in firsts]
        own = groups[rank // num_workers]
        try:
            yield TorchGroup(own, "processes of the trainer's group")
        finally:
            distributed.destroy_process_group(own)
        return
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ConfigError(
            f"distributed_executor_backend='external_launcher' needs {num_workers} processes that a launcher has "
            f"started, and {', '.join(missing)} are not set: start the script by `torchrun --nproc-per-node "
            f"{num_workers}`, or call torch.distributed.init_process_group first, or take 'mp'"
        )
    timeout = timedelta(seconds=DEFAULT_TIMEOUT)
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    block, place = divmod(rank, num_workers)
    _checked_size(size, num_workers)
    engine = store.add(f"lullm/engines of {rank}", 1)  # all ranks build engines in the same order
    group = TorchGroup.over(store, f"lullm/{engine}/{block}", Axis(place, num_workers), timeout)
    try:
        yield group
        gather_bytes(group, b"")  # the store stays while others read it
    finally:
        group.close()


def _checked_size(size: int, num_workers: int) -> int:
    if size % num_workers:
        raise ConfigError(
            f"the launcher has started {size} processes, which is no multiple of the {num_workers} workers of a model "
            "(tensor_parallel_size * pipeline_parallel_size)"
        )
    return size


def _meet(gather: _Gather, place: Placement, transport: Transport | None, timeout: float) -> Seat:
    """`transport`: None: the fastest for tensors of CPUs."""
    return _meet_here(gather, place, transport, timeout) or _meet_at_port(gather, place, transport or "gloo", timeout)


def _meet_here(gather: _Gather, place: Placement, transport: Transport | None, timeout: float) -> Seat | None:
    """Meet in a nameless file of the first process, which the others open by its number. None: some of them cannot."""
    meeting = Meeting.on_this_host(timeout, transport) if place.rank == 0 else None
    offer = b""
    if meeting is not None:
        file = meeting.rendezvous
        assert isinstance(file, LocalFile)
        offer = msgspec.json.encode(
            [_host(), os.getpid(), file.descriptor, *_identity(file.descriptor), file.transport]
        )
    first, *_ = gather(offer)
    host, process, descriptor, device, number, chosen = msgspec.json.decode(first)
    found = os.dup(descriptor) if meeting is not None else _opened(host, process, descriptor, device, number)
    try:
        answers = gather(b"" if found is None else b"found")
        return None if found is None or b"" in answers else open_seat(place, LocalFile(found, chosen, timeout))
    finally:
        if meeting is not None:
            meeting.close()
        if found is not None:
            os.close(found)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _opened(host: str, process: int, descriptor: int, device: int, number: int) -> int | None:
    """Open another process's file; None: it is on another host, or in another namespace."""
    if host != _host():
        return None
    try:
        found = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    if _identity(found) == (device, number):
        return found
    os.close(found)
    return None


def _host() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else socket.gethostname()


def _meet_at_port(gather: _Gather, place: Placement, transport: Transport, timeout: float) -> Seat:
    """Meet over the network, at a port of the first process. The port stays open, since NCCL connects at its first
    call.

    Not yet run on several hosts.
    """
    meeting = Meeting.at(socket.gethostname(), timeout, transport) if place.rank == 0 else None
    with ExitStack() as undo:
        if meeting is not None:
            undo.enter_context(meeting)
        first, *_ = gather(b"" if meeting is None else msgspec.json.encode(meeting.rendezvous))
        seat = open_seat(place, msgspec.json.decode(first, type=StoreAddress))
        gather(b"")
        seat.undo.callback(undo.pop_all().close)
        return seat
