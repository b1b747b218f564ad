"""PipelineStage: the layers that a worker has."""

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One of the stages into which the layers of a model are cut, in order.

    Args:
        rank: of this stage, from 0.
        num_layers: of every stage; empty: there is one, with all layers.
    """

    rank: int = 0
    num_layers: tuple[int, ...] = ()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank >= len(self.num_layers) - 1

    @property
    def layers_of_all(self) -> list[range]:
        """The numbers of each stage's layers; empty: there is one stage."""
        return [range(end - size, end) for size, end in zip(self.num_layers, accumulate(self.num_layers), strict=True)]
