"""Meeting: the driver's part of the workers' rendezvous; `open_seat`: a worker's part."""

import os
from datetime import timedelta
from types import TracebackType

from torch._C._distributed_c10d import TCPStore

from lullm.collective.collective import Alone, Collective
from lullm.collective.seat import Seat
from lullm.collective.torch_group import TorchGroup
from lullm.ops.cpu.library import load_library
from lullm.ops.cpu.memory_group import open_groups
from lullm.types.parallel.placement import Axis, Placement
from lullm.types.parallel.rendezvous import DEFAULT_TIMEOUT, LocalFile, Rendezvous, StoreAddress, Transport


class Meeting:
    """The place where the workers of one engine meet. It stays open while they live.

    Attributes:
        rendezvous: for each worker's `open_seat`.
        descriptors: a worker's process on this host inherits them, under the same numbers.
    """

    def __init__(self, rendezvous: Rendezvous, descriptors: tuple[int, ...] = (), store: TCPStore | None = None):
        self.rendezvous = rendezvous
        self.descriptors = descriptors
        self._store = store

    @classmethod
    def on_this_host(cls, timeout: float = DEFAULT_TIMEOUT, transport: Transport | None = None) -> "Meeting":
        """A meeting without a port, and without a name that could be left over.

        Not over loopback: a TCPStore asks DNS for the name of each client, and a lost answer costs 5 seconds.

        Args:
            transport: None: the fastest available one for tensors of CPUs.
        """
        transport = transport or ("memory" if load_library() is not None else "gloo")
        descriptor = os.memfd_create("lullm-meeting")
        return cls(LocalFile(descriptor, transport, timeout), (descriptor,))

    @classmethod
    def at(cls, host: str, timeout: float = DEFAULT_TIMEOUT, transport: Transport = "gloo") -> "Meeting":
        """A meeting for workers on several hosts, on a port that the system chooses. `host`: this host's address for
        them.
        """
        store = TCPStore(host, 0, is_master=True, timeout=timedelta(seconds=timeout), wait_for_workers=False)
        return cls(StoreAddress(host, store.port, transport, timeout), store=store)

    def close(self) -> None:
        """Idempotent."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors, self._store = (), None

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_seat(placement: Placement, rendezvous: Rendezvous) -> Seat:
    """Join the groups of a place. Blocks until all workers have called it.

    Raises:
        WorkerLostError: some did not come in time. UnsupportedError: the transport of tensors is missing here.
    """
    if isinstance(rendezvous, LocalFile) and rendezvous.transport == "memory":
        of_stage, of_column = open_groups(rendezvous.descriptor, placement, rendezvous.timeout)
        return Seat(placement, of_stage or Alone(), of_column or Alone())
    stage, column = placement.pipeline.rank, placement.tensor.rank
    return Seat(
        placement,
        tensor=_join(rendezvous, f"stage {stage}", placement.tensor),
        pipeline=_join(rendezvous, f"column {column}", placement.pipeline),
    )


def _join(rendezvous: Rendezvous, name: str, place: Axis) -> Collective:
    return Alone() if place.size == 1 else TorchGroup.join(rendezvous, name, place)
