"""Pooling: the sums of the rows that callers want, for many sequences of a step at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lullm.models.protocol import Model
from lullm.ops.table import Ops
from lullm.types.pooling.rows import RowRange
from lullm.types.step import PooledSum


@dataclass(frozen=True, slots=True)
class PooledStep:
    """The sums of one step, on the device until `on_host`. `owners`: (sequence, number of rows) of each sum."""

    owners: Sequence[tuple[int, int]]
    sums: Tensor  # [S, K] float32

    def on_host(self, to_host: Callable[[Tensor], Tensor]) -> "PooledStep":
        return PooledStep(self.owners, to_host(self.sums))

    def taken(self) -> list[PooledSum]:
        """The sums as plain data. Blocks until they are on the host."""
        rows = self.sums.numpy()
        return [
            PooledSum(seq_id, num_rows, row.tobytes())
            for (seq_id, num_rows), row in zip(self.owners, rows, strict=True)
        ]


def pool_rows(model: Model, ops: Ops, hidden: Tensor, wanted: Sequence[tuple[int, RowRange]]) -> PooledStep:
    """The sum of `Model.pool` over each range of rows. `hidden [N, H]`: only those rows, range after range.

    The head computes only these rows.
    """
    lens = [end - first for _, (first, end) in wanted]
    if model.pools_means and len(hidden) > len(wanted):  # so many times the head's result for their mean is their sum
        hidden = torch.stack([part.float().mean(0) for part in hidden.split(lens)]).to(hidden.dtype)
        values = model.pool(hidden, ops) * torch.tensor(lens, device=hidden.device)[:, None]
    else:
        values = model.pool(hidden, ops)  # [N, K]
    if len(values) > len(wanted):
        values = torch.stack([part.sum(0) for part in values.split(lens)])
    owners = [(seq_id, num_rows) for (seq_id, _), num_rows in zip(wanted, lens, strict=True)]
    return PooledStep(owners, values.contiguous())
