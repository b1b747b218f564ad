"""ExternalWorkers: this process's worker, and what the workers of the other processes have answered to the same call.

Every process makes the same calls in the same order. Answers are exchanged, so that all processes go on with the same
values and fail with the same error; results of steps are not, since all workers sample alike.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from lullm.collective.collective import Collective
from lullm.errors import ModelLoadError
from lullm.executor.external.exchange import exchange
from lullm.executor.protocol import Answer, WorkerVerb
from lullm.executor.uniproc import LocalWorkers
from lullm.types.step import Running, StepPlan, StepResult
from lullm.worker.worker import Worker


class ExternalWorkers:
    """Implements `Workers`; those of other processes are seen by their answers only."""

    def __init__(self, worker: Worker):
        self._worker = worker
        self._seat = worker.setup.seat
        self._local = LocalWorkers([worker])

    @property
    def num_workers(self) -> int:
        return self._seat.placement.num_workers

    def call(self, verb: WorkerVerb, *args: Any) -> list[Answer]:
        if verb == "write_weight":
            return self._update(*args)
        return exchange(self._seat, *self._local.call(verb, *args))

    def launch(self, plan: StepPlan) -> list[Running[StepResult]]:
        return self._local.launch(plan)

    def run(
        self, method: str | Callable[..., Any], timeout: float | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Answer]:
        """A callable may be any: every process calls its own."""
        return exchange(self._seat, *self._local.run(method, timeout, args, kwargs))

    def weights_versions(self) -> list[int]:
        return self._local.weights_versions()

    def observe_loss(self, observer: Callable[[], None]) -> None:
        """A lost process is noticed by the next call that needs it."""
        self._local.observe_loss(observer)

    def check_health(self) -> None:
        self._local.check_health()

    def close(self) -> None:
        self._local.close()

    def _update(self, name: str, tensor: torch.Tensor) -> list[Answer]:
        """The tensor itself, or this process's part of it: equal pieces by rank, along any one dimension."""
        given = [each.value for each in exchange(self._seat, Answer((name, tuple(tensor.shape), tensor.dtype)))]
        if any(each != given[0] for each in given):
            shown = "; ".join(f"{each[0]} {list(each[1])} {each[2]}" for each in given)
            return [Answer(error=ModelLoadError(f"the processes push different tensors at a time: {shown}"))]
        shape = self._worker.weight_shape(name)
        if shape is not None and shape != tensor.shape:
            tensor = _joined(self._seat.tensor, tensor, shape)
        return exchange(self._seat, *self._local.call("write_weight", name, tensor))


def _joined(group: Collective, piece: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The whole of which every member has a piece; the piece itself, if its shape is none of a piece.

    Members that have the same piece are neighbours, as the workers of a key head are that all of them need.
    """
    dims = [dim for dim, sizes in enumerate(zip(shape, piece.shape, strict=False)) if sizes[0] != sizes[1]]
    if len(shape) != piece.dim() or len(dims) != 1 or not piece.numel():
        return piece
    [dim] = dims
    num_pieces, rest = divmod(shape[dim], piece.shape[dim])
    if rest or group.size % num_pieces:
        return piece
    pieces = group.all_gather(piece.reshape(1, -1)).view(group.size, *piece.shape)
    return torch.cat(pieces[:: group.size // num_pieces].unbind(), dim)
