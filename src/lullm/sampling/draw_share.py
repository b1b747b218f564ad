"""DrawShare: workers that share a model's head each draw for some rows of a batch, and exchange the tokens.

Each worker has some columns of the logits. To gather all of them and draw for all rows on every worker took 8.4 and 54
ms for 32 rows of 151,936 logits with top_p on one core each (Intel Xeon with AMX). Two workers need half of both.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from lullm.collective.collective import Collective, rows_of
from lullm.ops.draw_table import DrawTable
from lullm.ops.table import Ops
from lullm.sampling.sampler import Sampled, num_best_of_rows
from lullm.types.draw import Draw


class DrawShare:
    """A worker's rows of decode batches with one draw per row.

    Args:
        group: the workers that share the head.
    """

    def __init__(self, group: Collective):
        self._group = group
        self._place_of_row = lru_cache(maxsize=64)(partial(_find_places, group.size))  # no circle with this object

    def rows(self, size: int) -> range:
        """This worker's rows of a batch of `size` rows; all workers have equally many."""
        return rows_of(size, self._group.rank, self._group.size)

    def ops(self, ops: Ops) -> Ops:
        """Ops with which the head gives the logits of these rows only."""
        return ops if self._group.size == 1 else replace(ops, all_gather=self._group.deal_rows)

    def draws(self, draws: Sequence[Draw], size: int) -> Sequence[Draw]:
        """The draws of these rows; a padded batch has fewer draws than rows."""
        own = self.rows(size)
        return draws[own.start : own.stop]

    def table(self, table: DrawTable, size: int) -> DrawTable:
        """The table of these rows."""
        return table.part(self.rows(size))

    def num_best(self, draws: Sequence[Draw], size: int) -> int | None:
        """See `Sampler.draw`."""
        return None if self._has_all(size) else max(num_best_of_rows(draws).values(), default=None)

    def tokens(self, own: Tensor, size: int) -> Tensor:
        """`[R]` int64 of these rows -> `[size]` of all rows."""
        if self._has_all(size):
            return own
        return self._group.all_gather(own.view(1, -1)).flatten()[self._place_of_row(size, own.device)]

    def sampled(self, own: Sampled, draws: Sequence[Draw], size: int) -> Sampled:
        """The results of these rows -> of all `draws`. `own` has as many columns as the widest of all draws needs."""
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
        """Whether each worker draws for all rows: a single worker, or a batch of one."""
        return len(self.rows(size)) == size


def _find_places(num_ranks: int, size: int, device: torch.device) -> Tensor:
    """`[size]`: the index of each row of a batch among the rows of all workers, in rank order."""
    of_ranks = [rows_of(size, rank, num_ranks) for rank in range(num_ranks)]
    places = {row: place for place, row in enumerate(row for rows in of_ranks for row in rows)}
    return torch.tensor([places[row] for row in range(size)], device=device)
