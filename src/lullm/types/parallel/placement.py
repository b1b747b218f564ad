"""Placement: the place of one worker among all workers of an engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """A place in a line of workers. `rank` counts from 0 to `size - 1`."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1


@dataclass(frozen=True, slots=True)
class Placement:
    """A worker's place in the grid of pipeline stages x tensor shares. Neighbours in rank share a stage.

    Args:
        tensor: among the workers that share the matrices of each layer (https://arxiv.org/abs/1909.08053).
        pipeline: among the stages, each of which has some of the layers (https://arxiv.org/abs/1811.06965).
    """

    tensor: Axis = Axis()
    pipeline: Axis = Axis()

    @property
    def rank(self) -> int:
        """Among all workers."""
        return self.pipeline.rank * self.tensor.size + self.tensor.rank

    @property
    def num_workers(self) -> int:
        return self.pipeline.size * self.tensor.size


def placements(tensor_size: int, pipeline_size: int) -> list[Placement]:
    """The placements of all workers, by rank."""
    return [
        Placement(Axis(tensor_rank, tensor_size), Axis(stage, pipeline_size))
        for stage in range(pipeline_size)
        for tensor_rank in range(tensor_size)
    ]
