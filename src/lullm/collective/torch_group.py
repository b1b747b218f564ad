"""TorchGroup: a group of workers over torch.distributed, on one host or several.

Gloo carries tensors of CPUs, NCCL those of GPUs (not yet run), which wait forever for a dead member (see `abort`). It
does not use torch's default process group, so that any number of engines can live in one process, also beside a
trainer's group.
"""

import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed import ProcessGroup, ProcessGroupGloo

from lullm.collective.collective import rows_of
from lullm.errors import UnsupportedError, WorkerLostError
from lullm.types.parallel.placement import Axis
from lullm.types.parallel.rendezvous import LocalFile, Rendezvous, Transport

_LOOPBACK = "127.0.0.1"
_TAG = 0  # messages of a pair keep their order


class TorchGroup:
    """One member's end. Implements `Collective`.

    Args:
        group: torch's, of a trainer or from `join`. The caller destroys it.
        describe: the group's name, for errors.
    """

    def __init__(self, group: "ProcessGroup | Any", describe: str = "workers"):
        self._group = group
        self._undo = ExitStack()
        self._describe = describe
        self.rank: int = group.rank()
        self.size: int = group.size()

    @classmethod
    def join(cls, rendezvous: Rendezvous, name: str, place: Axis) -> "TorchGroup":
        """Meet the other members of the group `name`. Blocking. Raises WorkerLostError: some have not come in time."""
        timeout = timedelta(seconds=rendezvous.timeout)
        with _Lost(f"the workers of the group {name} have not met"), ExitStack() as undo:
            store: Store
            if isinstance(rendezvous, LocalFile):
                # The store opens its path at each call and once more as it ends; NCCL meets only at its first use.
                descriptor = os.dup(rendezvous.descriptor)
                undo.callback(os.close, descriptor)
                store = FileStore(f"/proc/self/fd/{descriptor}", -1)
                store.set_timeout(timeout)
                own = _LOOPBACK
            else:
                address = rendezvous.host, rendezvous.port
                own = own_address(*address)
                store = TCPStore(*address, is_master=False, timeout=timeout, wait_for_workers=False)
            group = cls.over(store, name, place, timeout, rendezvous.transport, own)
            group._undo = undo.pop_all()
        return group

    @classmethod
    def over(
        cls,
        store: Store,
        name: str,
        place: Axis,
        timeout: timedelta,
        transport: Transport = "gloo",
        own: str | None = None,
    ) -> "TorchGroup":
        """`join` through a store that all members see. `own`: this host's address for them; None: that of its name."""
        with _Lost(f"the workers of the group {name} have not met"):
            group = _TRANSPORTS[transport](PrefixStore(name, store), place, timeout, own)
        return cls(group, f"the workers of the group {name}")

    def all_reduce_(self, x: Tensor) -> None:
        """Gathered, then added: the sums of gloo and NCCL have an order that depends on the size."""
        first, *others = self._gathered(x).unbind()
        total = first.float()
        for part in others:
            total += part
        x.copy_(total)

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self._gathered(x).unbind(), dim=1)

    def deal_rows(self, x: Tensor) -> Tensor:
        own = rows_of(len(x), self.rank, self.size)
        return torch.cat(self._gathered(x)[:, own.start : own.stop].unbind(), dim=1)

    def send(self, x: Tensor, to: int) -> None:
        whole = x.contiguous()
        self._finish(whole, lambda: self._group.send([_bytes_of(whole)], to, _TAG))

    def receive_(self, x: Tensor, source: int) -> None:
        whole = x if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)
        self._finish(whole, lambda: self._group.recv([_bytes_of(whole)], source, _TAG))
        if whole is not x:
            x.copy_(whole)

    def abort(self) -> None:
        """Abort work between GPUs, from any thread. Its results are garbage, and later calls fail."""
        if self._group is not None:
            self._group.abort()

    def close(self) -> None:
        self._group = None
        self._undo.close()

    def _gathered(self, x: Tensor) -> Tensor:
        """All members' x, `[size, *x.shape]`."""
        parts = torch.empty((self.size, *x.shape), dtype=x.dtype, device=x.device)
        whole = x.contiguous()
        self._finish(whole, lambda: self._group.allgather([[_bytes_of(part) for part in parts]], [_bytes_of(whole)]))
        return parts

    def _finish(self, x: Tensor, start: Callable[[], Any]) -> None:
        """Exchange x. Zero rows are not exchanged: gloo takes 5 seconds for them."""
        if self._group is None:
            raise WorkerLostError(f"{self._describe}: this one has left the group")
        if x.numel():
            with _Lost(f"{self._describe} are out of reach"):
                start().wait()


class _Lost:
    """Turns errors of torch's transports, which are RuntimeErrors of many texts, into WorkerLostError."""

    def __init__(self, what: str):
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, RuntimeError):
            reason = str(error).splitlines()[0][:300]
            raise WorkerLostError(f"{self._what}: another worker has died or hangs ({reason})") from error


def _bytes_of(x: Tensor) -> Tensor:
    """x as one row of bytes: gloo knows few types."""
    return x.view(-1).view(torch.uint8)


def own_address(host: str, port: int) -> str:
    """The address of this host on the route to another; sends no packet. Raises OSError: there is no route."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return own


def _gloo(store: PrefixStore, place: Axis, timeout: timedelta, own: str | None) -> Any:
    gloo: Any = ProcessGroupGloo  # its options have no public name
    options = gloo._Options()
    # Without an address gloo takes that of the host's own name, which may be external, unreachable, or 127.0.1.1.
    device = gloo.create_default_device() if own is None else gloo.create_device(hostname=own)
    options._devices, options._timeout = [device], timeout
    return gloo(store, place.rank, place.size, options)


def _nccl(store: PrefixStore, place: Axis, timeout: timedelta, own: str | None) -> Any:
    if not torch.distributed.is_nccl_available():
        raise UnsupportedError("this build of torch has no NCCL; install a build for GPUs, or use device='cpu'")
    options = torch.distributed.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return torch.distributed.ProcessGroupNCCL(store, place.rank, place.size, options)


_TRANSPORTS: dict[str, Callable[[PrefixStore, Axis, timedelta, str | None], Any]] = {"gloo": _gloo, "nccl": _nccl}
