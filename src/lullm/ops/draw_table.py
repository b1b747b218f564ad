"""DrawTable: the parameters and random keys with which a device draws one token per row, as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lullm.types.draw import Draw


@dataclass(frozen=True, slots=True)
class DrawTable:
    """N rows; each column is a tensor, so that a graph's columns can be filled in place. All on the logits' device.

    Args:
        temperatures: `[N]` float32; 0: greedy, and the row's other columns have no effect.
        top_k: `[N]` int32 in 1..V; V keeps all.
        top_p: `[N]` float64 in (0, 1]; 1 keeps all.
        min_p_floors: `[N]` float32: log(min_p), -inf for none.
        keys: `[N]` int64, from `sampling.race.keys_of`.
    """

    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p_floors: Tensor
    keys: Tensor

    @staticmethod
    def of(draws: Sequence[Draw], keys: np.ndarray | None, vocab_size: int) -> "DrawTable":
        """The table of these draws, in host memory.

        Args:
            keys: `[N]` int64; None: all draws are greedy. Only `temperatures` has contents then.
            vocab_size: V.
        """
        num_draws = len(draws)
        if keys is None:
            rest = (torch.empty(num_draws, dtype=dtype) for dtype in _DTYPES[1:])
            return DrawTable(torch.zeros(num_draws), *rest)
        params = [draw.params for draw in draws]
        limits = np.finfo(np.float32)
        temperatures = np.array([p.temperature for p in params])
        # A positive temperature stays positive: in float32 1e-60 would be 0, and the row greedy.
        temperatures = np.where(temperatures == 0.0, 0.0, temperatures.clip(limits.tiny, limits.max))
        min_p = np.array([p.min_p for p in params])
        floors = np.log(min_p, out=np.full(num_draws, -np.inf), where=min_p > 0)
        return DrawTable(
            torch.from_numpy(temperatures.astype(np.float32)),
            torch.tensor([p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params], dtype=torch.int32),
            torch.tensor([p.top_p for p in params], dtype=torch.float64),
            torch.from_numpy(floors.astype(np.float32)),
            torch.from_numpy(keys),
        )

    def part(self, rows: range) -> "DrawTable":
        """Consecutive rows."""
        return DrawTable(*(column[rows.start : rows.stop] for column in self._columns()))

    def take(self, rows: Tensor) -> "DrawTable":
        """Some of the rows, by their numbers [R]."""
        return DrawTable(*(column.index_select(0, rows) for column in self._columns()))

    def to(self, device: torch.device) -> "DrawTable":
        """The same on a device."""
        return DrawTable(*(column.to(device) for column in self._columns()))

    def _columns(self) -> tuple[Tensor, ...]:
        return (self.temperatures, self.top_k, self.top_p, self.min_p_floors, self.keys)


_DTYPES = (torch.float32, torch.int32, torch.float64, torch.float32, torch.int64)
"""The types of the columns of a `DrawTable`."""
