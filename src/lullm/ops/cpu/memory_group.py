"""MemoryGroup: workers of one host that sum, gather and pass on tensors over memory that they share.

The memory is a region of a nameless file (`types.parallel.rendezvous.LocalFile`): it goes with the last of them. Its
calls are native (`csrc/collective/`), can be replayed (`recording`), and end with an error when a member has died.
"""

import ctypes
import os
from contextlib import ExitStack

import torch
from torch import Tensor

from lullm.collective.collective import rows_of
from lullm.errors import UnsupportedError, WorkerLostError
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.cpu.recording import call, new_result
from lullm.types.parallel.placement import Axis, Placement

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The types that are summed, with their numbers in `csrc/dtype.h`."""

_HEADER_BYTES = 4096
_FATES = {
    1: "worker {} of its group has died",
    2: "worker {} of its group has left",
    3: "worker {} of its group has not come to it in time",
    4: "a worker of another group is lost",
}
"""By `Failure` in `csrc/collective/group.h`."""


class MemoryGroup:
    """One member's end. Implements `Collective`. Tensors to be summed are of `DTYPES`.

    A member waits for the others on its core for 0.02 milliseconds, then it lets others have the core, then it sleeps.
    A death is noticed within 0.1 seconds.

    Args:
        descriptor, offset: of the file and the group's region in it.
        name: of the group, for errors.
        timeout: seconds that it waits for another member.
    """

    def __init__(self, descriptor: int, offset: int, name: str, place: Axis, timeout: float):
        """Blocking, until all members are there. Raises WorkerLostError: some have not come in time."""
        self.rank, self.size = place.rank, place.size
        self._name = name
        self._group: int | None = None
        self._group = call("lullm_open_group", descriptor, offset, place.rank, place.size, int(timeout * 1e9))
        if self._group is None:
            raise UnsupportedError(f"group {name}: the place of worker {place.rank} is taken, or its memory refused")
        self._call("lullm_meet")

    def all_reduce_(self, x: Tensor) -> None:
        whole = x.contiguous()
        self._call("lullm_all_reduce", whole, whole.numel(), DTYPES[x.dtype])
        if whole is not x:
            x.copy_(whole)

    def all_gather(self, x: Tensor) -> Tensor:
        whole = x.contiguous()
        num_rows, num_columns = x.shape
        y = new_result((num_rows, self.size * num_columns), x.dtype)
        self._call("lullm_all_gather", whole, y, num_rows, num_columns * x.itemsize)
        return y

    def deal_rows(self, x: Tensor) -> Tensor:
        whole = x.contiguous()
        num_rows, num_columns = x.shape
        y = new_result((len(rows_of(num_rows, self.rank, self.size)), self.size * num_columns), x.dtype)
        self._call("lullm_deal_rows", whole, y, num_rows, num_columns * x.itemsize)
        return y

    def send(self, x: Tensor, to: int) -> None:
        whole = x.contiguous()
        self._call("lullm_send", whole, whole.nbytes, to)

    def receive_(self, x: Tensor, source: int) -> None:
        whole = x if x.is_contiguous() else torch.empty(x.shape, dtype=x.dtype)
        self._call("lullm_receive", whole, whole.nbytes, source)
        if whole is not x:
            x.copy_(whole)

    def close(self) -> None:
        if self._group is not None:
            call("lullm_close_group", self._group)
        self._group = None

    def _call(self, name: str, *arguments: Tensor | int) -> None:
        if self._group is None:
            raise WorkerLostError(f"group {self._name}: worker {self.rank} has left it")
        if not call(name, self._group, *arguments):
            member = ctypes.c_int64()
            fate = call("lullm_group_failure", self._group, ctypes.addressof(member))
            raise WorkerLostError(f"group {self._name}: {_FATES[fate or 3].format(member.value)}")


def open_groups(descriptor: int, placement: Placement, timeout: float) -> tuple[MemoryGroup | None, MemoryGroup | None]:
    """The groups of a place: of its stage and of its column; None where it would be alone. Blocking.

    Raises as `MemoryGroup`.
    """
    library = load_library()
    if library is None:
        raise UnsupportedError(f"workers share no memory without native CPU ops, which are {absence()}")
    tensor, pipeline = placement.tensor, placement.pipeline
    sizes = [0 if axis.size == 1 else library.handle.lullm_group_bytes(axis.size) for axis in (tensor, pipeline)]
    columns_at = _HEADER_BYTES + pipeline.size * sizes[0]
    os.ftruncate(descriptor, columns_at + tensor.size * sizes[1])  # every worker finds the same length
    stage, column = pipeline.rank, tensor.rank
    with ExitStack() as undo:
        of_stage = of_column = None
        if sizes[0]:
            at = _HEADER_BYTES + stage * sizes[0]
            of_stage = MemoryGroup(descriptor, at, f"stage {stage}", tensor, timeout)
            undo.callback(of_stage.close)
        if sizes[1]:
            of_column = MemoryGroup(descriptor, columns_at + column * sizes[1], f"column {column}", pipeline, timeout)
        undo.pop_all()
    return of_stage, of_column
