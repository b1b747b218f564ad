"""ExternalWorkers: this process's worker, and the answers of the other processes' workers to the same calls.

Every process makes the same calls in the same order. Answers are exchanged, so that all processes go on with the same
values and fail with the same error. Results of steps are not exchanged, since all workers of a stage sample alike. In a
pipeline only the last stage draws, and it sends its results to the stages before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lullm.collective.collective import Collective
from lullm.collective.message import gather_bytes
from lullm.collective.seat import Seat
from lullm.errors import ModelLoadError
from lullm.executor.external.exchange import exchange
from lullm.executor.external.watch import Guard, unguarded
from lullm.executor.uniproc import LocalWorkers
from lullm.executor.workers import Answer, WorkerVerb
from lullm.types.step import Running, StepPlan, StepResult
from lullm.types.step_codec import decode_result, encode_result
from lullm.types.wire.remote_call import RemoteCall
from lullm.worker.worker import Worker


class ExternalWorkers:
    """Implements `Workers`; workers of other processes are known by their answers only.

    Args:
        words: the worker's seat, or one beside it if its own carries only tensors of GPUs. It is closed here.
        guard: a context for work that may wait for other processes' GPUs.
    """

    def __init__(self, worker: Worker, words: Seat, guard: Guard = unguarded):
        self._worker = worker
        self._words = words
        self._guard = guard
        self._local = LocalWorkers([worker])

    @property
    def num_workers(self) -> int:
        return self._words.placement.num_workers

    def call(self, verb: WorkerVerb, *args: Any) -> list[Answer]:
        if verb == "write_weight":
            return self._update(*args)
        with self._guard("call"):
            own = self._local.call(verb, *args)
        return self._exchanged(*own)

    def launch(self, plan: StepPlan) -> list[Running[StepResult]]:
        with self._guard("step"):
            [step] = self._local.launch(plan)
        return [_BroadcastStep(step, self._words.pipeline, self._guard)]

    def run(self, call: RemoteCall) -> list[Answer]:
        """Any callable is allowed: every process calls its own."""
        return self._exchanged(*self._local.run(call))

    def weights_versions(self) -> list[int]:
        """By stage; all workers of a stage have the same version. In a pipeline all processes ask at the same time.

        They exchange versions: a script may have loaded the layers of its own stage into its worker's model, and then
        the KV of all stages is stale.
        """
        [own] = self._local.weights_versions()
        told = gather_bytes(self._words.pipeline, own.to_bytes(8, "little"))
        return [int.from_bytes(version, "little") for version in told]

    def observe_loss(self, observer: Callable[[], None]) -> None:
        """Not called: the next call that needs a lost process notices it."""
        self._local.observe_loss(observer)

    def check_health(self) -> None:
        self._local.check_health()

    def close(self) -> None:
        self._local.close()
        self._words.close()

    def _update(self, name: str, tensor: torch.Tensor) -> list[Answer]:
        """The tensor itself, or this process's part of it: equal pieces by rank, along any one dimension."""
        shape = self._worker.weight_shape(name)  # None: its layer is on another stage
        own = (name, tuple(tensor.shape), tensor.dtype), None if shape is None else tuple(shape)
        given, shapes = zip(*(each.value for each in self._exchanged(Answer(own))), strict=True)
        if any(each != given[0] for each in given):
            shown = "; ".join(f"{each[0]} {list(each[1])} {each[2]}" for each in given)
            return [Answer(error=ModelLoadError(f"the processes push different tensors at a time: {shown}"))]
        whole = next((each for each in shapes if each is not None), None)
        if whole is not None and whole != tuple(tensor.shape):
            tensor = _joined(self._worker.setup.seat, tensor.to(self._worker.device), whole)
        return self._exchanged(*self._local.call("write_weight", name, tensor))

    def _exchanged(self, own: Answer) -> list[Answer]:
        """The answers of all workers."""
        return exchange(self._words, own)


@dataclass(frozen=True, slots=True)
class _BroadcastStep:
    """A step. In a pipeline, the last stage sends its result to all."""

    step: Running[StepResult]
    pipeline: Collective
    guard: Guard

    def result(self) -> StepResult:
        """Wait for this step only: a stage that went ahead would send rows while another waits for a result."""
        with self.guard("step"):
            own = self.step.result()
        if self.pipeline.size == 1:
            return own
        is_last = self.pipeline.rank == self.pipeline.size - 1
        told = gather_bytes(self.pipeline, encode_result(own) if is_last else b"")
        return own if is_last else decode_result(told[-1])


def _joined(seat: Seat, piece: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The whole tensor, of which every process has a piece; the piece itself, if it has no piece's shape.

    Either the processes of one stage have all pieces, or all processes together have. Processes with the same piece are
    neighbours, such as the workers of a key head that all of them need.
    """
    dims = [dim for dim, sizes in enumerate(zip(shape, piece.shape, strict=False)) if sizes[0] != sizes[1]]
    if len(shape) != piece.dim() or len(dims) != 1 or not piece.numel():
        return piece
    [dim] = dims
    num_pieces, rest = divmod(shape[dim], piece.shape[dim])
    is_of_stage = seat.tensor.size % num_pieces == 0
    size = seat.tensor.size if is_of_stage else seat.placement.num_workers
    if rest or size % num_pieces:
        return piece
    row = seat.tensor.all_gather(piece.reshape(1, -1))
    pieces = (row if is_of_stage else seat.pipeline.all_gather(row)).view(size, *piece.shape)
    return torch.cat(pieces[:: size // num_pieces].unbind(), dim)
