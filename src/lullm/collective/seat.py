"""Seat: where a worker stands, and its ends of the groups that it belongs to."""

from dataclasses import dataclass, field

from lullm.collective.collective import Alone, Collective
from lullm.types.parallel.placement import Placement


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's placement with its groups: `tensor` of its stage, `pipeline` of the workers of its tensor rank."""

    placement: Placement = Placement()
    tensor: Collective = field(default_factory=Alone)
    pipeline: Collective = field(default_factory=Alone)

    def close(self) -> None:
        """Leave all groups. Idempotent."""
        self.tensor.close()
        self.pipeline.close()
