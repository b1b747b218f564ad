"""Meeting: the driver's end of how workers find each other, and `open_seat`, the worker's."""

from datetime import timedelta
from types import TracebackType

from torch._C._distributed_c10d import TCPStore

from lullm.collective.collective import Alone, Collective
from lullm.collective.seat import Seat
from lullm.collective.torch_group import TorchGroup
from lullm.types.parallel.placement import Axis, Placement
from lullm.types.parallel.rendezvous import DEFAULT_TIMEOUT, StoreAddress, Transport

Rendezvous = StoreAddress


class Meeting:
    """Open while workers of one engine live.

    Attributes:
        rendezvous: for each worker's `open_seat`.
    """

    def __init__(self, host: str = "127.0.0.1", transport: Transport = "gloo", timeout: float = DEFAULT_TIMEOUT):
        """On a port that the system chooses. `host`: the name of this host by which workers reach it."""
        self._store: TCPStore | None = TCPStore(
            host, 0, is_master=True, timeout=timedelta(seconds=timeout), wait_for_workers=False
        )
        self.rendezvous: Rendezvous = StoreAddress(host, self._store.port, transport, timeout)

    def close(self) -> None:
        """Idempotent."""
        self._store = None

    def __enter__(self) -> "Meeting":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_seat(placement: Placement, rendezvous: Rendezvous) -> Seat:
    """Join the groups of a place. Blocking, until all workers have called it.

    Raises:
        WorkerLostError: some have not come in time. UnsupportedError: what carries tensors is missing here.
    """
    stage, column = placement.pipeline.rank, placement.tensor.rank
    return Seat(
        placement,
        tensor=_join(rendezvous, f"stage {stage}", placement.tensor),
        pipeline=_join(rendezvous, f"column {column}", placement.pipeline),
    )


def _join(rendezvous: Rendezvous, name: str, place: Axis) -> Collective:
    return Alone() if place.size == 1 else TorchGroup.join(rendezvous, name, place)
