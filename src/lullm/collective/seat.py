"""Seat: a worker's place, and its ends of its groups."""

from contextlib import ExitStack
from dataclasses import dataclass, field

from lullm.collective.collective import Alone, Collective
from lullm.collective.torch_group import TorchGroup
from lullm.types.parallel.placement import Placement


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's placement with its groups: `tensor` of its stage, `pipeline` of the workers of its tensor rank.

    Args:
        undo: called after its groups are left.
    """

    placement: Placement = Placement()
    tensor: Collective = field(default_factory=Alone)
    pipeline: Collective = field(default_factory=Alone)
    undo: ExitStack = field(default_factory=ExitStack)

    def abort(self) -> None:
        """Abort work that waits for other workers' GPUs, from any thread; see `TorchGroup.abort`."""
        for group in (self.tensor, self.pipeline):
            if isinstance(group, TorchGroup):
                group.abort()

    def close(self) -> None:
        """Leave all groups. Idempotent."""
        self.tensor.close()
        self.pipeline.close()
        self.undo.close()
