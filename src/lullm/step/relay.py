"""Relay: passes the residual stream of each step from one stage of a pipeline to the next (GPipe, arXiv:1811.06965).

It is no part of recordings: a step's rows arrive before, in memory at a fixed address, and leave afterwards.
"""

import torch
from torch import Tensor

from lullm.collective.collective import Collective
from lullm.types.parallel.stage import PipelineStage


class Relay:
    """A worker's connection to the stages before and after it. The first stage receives nothing, the last sends
    nothing.

    Args:
        line: the workers of one tensor rank, by stage.
        shape: rows of the largest step, and the size of a hidden state.
        dtype, device: of activations.
    """

    def __init__(
        self, line: Collective, stage: PipelineStage, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
    ):
        self._line = line
        self._stage = stage
        self._stream = None if stage.is_first else torch.zeros(shape, dtype=dtype, device=device)  # [T, H]

    @property
    def is_last(self) -> bool:
        """Whether the stage draws tokens; otherwise it passes rows on."""
        return self._stage.is_last

    def stream(self, num_rows: int) -> Tensor | None:
        """Memory for a step's incoming rows `[num_rows, H]`, the same every time; None: this stage embeds tokens."""
        return None if self._stream is None else self._stream[:num_rows]

    def receive(self, num_rows: int) -> None:
        """Wait for the rows from the stage before. Raises WorkerLostError."""
        if self._stream is not None:
            self._line.receive_(self._stream[:num_rows], self._stage.rank - 1)

    def send(self, stream: Tensor) -> None:
        """Send the rows `[T, H]` to the next stage. Raises WorkerLostError."""
        self._line.send(stream, self._stage.rank + 1)
