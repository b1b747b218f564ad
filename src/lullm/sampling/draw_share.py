"""DrawShare: of the workers that share a model's head each draws for some rows of a batch, and tells the others.

Each has some columns of the logits. To gather all of them everywhere, and to draw for all rows everywhere, took 8.4 and
54 ms of 32 rows of 151,936 logits with top_p on one core each (Intel Xeon with AMX); a half of both is enough.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from lullm.collective.collective import Collective, rows_of
from lullm.ops.draw_table import DrawTable
from lullm.ops.table import Ops
from lullm.sampling.sampler import Sampled, num_best_of_rows
from lullm.types.draw import Draw


class DrawShare:
    """A worker's rows of batches of decodes with one draw per row.

    Args:
        group: of those that share the head.
    """

    def __init__(self, group: Collective):
        self._group = group
        self._place_of_row = lru_cache(maxsize=64)(self._find_places)

    def rows(self, size: int) -> range:
        """Of a batch of so many rows; all workers have as many."""
        return rows_of(size, self._group.rank, self._group.size)

    def ops(self, ops: Ops) -> Ops:
        """With which a head gives the logits of these rows only."""
        return ops if self._group.size == 1 else replace(ops, all_gather=self._group.deal_rows)

    def draws(self, draws: Sequence[Draw], size: int) -> Sequence[Draw]:
        """Those of these rows; a batch that is filled up to `size` has fewer draws."""
        own = self.rows(size)
        return draws[own.start : own.stop]

    def table(self, table: DrawTable, size: int) -> DrawTable:
        """That of these rows."""
        return table.part(self.rows(size))

    def num_best(self, draws: Sequence[Draw], size: int) -> int | None:
        """See `Sampler.draw`."""
        return None if self._has_all(size) else max(num_best_of_rows(draws).values(), default=None)

    def tokens(self, own: Tensor, size: int) -> Tensor:
        """`[R]` int64 of these rows -> `[size]` of all."""
        if self._has_all(size):
            return own
        return self._group.all_gather(own.view(1, -1)).flatten()[self._place_of_row(size, own.device)]

    def sampled(self, own: Sampled, draws: Sequence[Draw], size: int) -> Sampled:
        """Of the draws of these rows -> of all `draws`. `own` has the columns that the widest of all draws needs."""
        if self._has_all(size):
            return own
        missing = len(self.rows(size)) - len(own.draws)
        if own.table is None:
            tokens = self.tokens(pad(own.tokens, (0, missing)), size)
            return Sampled(draws, tokens[: len(draws)], None, {})
        table = pad(own.table, (0, 0, 0, missing))  # [R, columns]
        rows = self._group.all_gather(table.view(1, -1)).view(-1, table.shape[1])
        rows = rows[self._place_of_row(size, table.device)][: len(draws)]
        return Sampled(draws, rows[:, 0].long(), rows, num_best_of_rows(draws))

    def _has_all(self, size: int) -> bool:
        """Whether each worker draws for all: one that is alone, or of a batch of one."""
        return len(self.rows(size)) == size

    def _find_places(self, size: int, device: torch.device) -> Tensor:
        """`[size]`: where the row of a batch stands among the rows of all workers, in rank order."""
        of_ranks = [rows_of(size, rank, self._group.size) for rank in range(self._group.size)]
        places = {row: place for place, row in enumerate(row for rows in of_ranks for row in rows)}
        return torch.tensor([places[row] for row in range(size)], device=device)
