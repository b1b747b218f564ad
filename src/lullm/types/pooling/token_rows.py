"""TokenRows: the pooled rows of one sequence, each for itself, as its steps bring them.

They stay in the engine until the sequence has ended: `[T, K]` float32, of a prompt whose keys and values are in the
cache all the while. Dimensions, activation and tag are applied to each step's rows, so nothing is left for the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from lullm.types.pooling.params import Pooling, PoolingActivation
from lullm.types.pooling.rows import PackedFloats, PooledRows, RowRange
from lullm.types.request import GenerateRequest

TokenTable = tuple[int, bytearray]
"""(columns, rows of float32 one after the other)"""


@dataclass(slots=True)
class TokenRows:
    """The rows of one sequence. `token_ids`: of the wanted ones, which stand from the place `first_wanted` on.
    `num_rows`: computed so far, in order. `width`: columns of those that are kept.

    `rows`: those that are kept, float32, one after the other. A span's rows are bit-equal to those of other spans, so
    the table does not depend on the chunks.
    """

    pooling: Pooling
    token_ids: Sequence[int]
    first_wanted: int = 0
    num_rows: int = 0
    width: int = 0
    rows: bytearray = field(default_factory=bytearray)
    is_finite: bool = True

    are_summed = False

    @property
    def is_complete(self) -> bool:
        return self.num_rows == len(self.token_ids)

    def wanted(self, start: int, end: int) -> RowRange | None:
        """As `PooledRows.wanted`: all rows of a span from the first wanted one on."""
        first = max(start, self.first_wanted)
        return (first - start, end - start) if first < end else None

    def add(self, packed: PackedFloats, num_rows: int) -> None:
        """Add the next `num_rows` rows."""
        first, self.num_rows = self.num_rows, self.num_rows + num_rows
        table = np.frombuffer(packed, np.float32).reshape(num_rows, -1)[:, : self.pooling.dimensions]
        self.width = table.shape[1]
        if self.pooling.step_tag_id is not None:
            is_tag = np.array(self.token_ids[first : self.num_rows]) == self.pooling.step_tag_id
            table = table[is_tag]
        self.is_finite = self.is_finite and bool(np.isfinite(table).all())
        if len(table):
            table = np.ascontiguousarray(activated_rows(table, self.pooling.activation))
            self.rows += table.data.cast("B")

    def clear(self) -> None:
        """Start again: the sequence is computed again."""
        self.num_rows, self.width, self.rows, self.is_finite = 0, 0, bytearray(), True

    def data(self, pooling: Pooling) -> np.ndarray:
        """The caller's rows `[T, K]` float32, once they are complete; they share this object's memory."""
        return table_of((self.width, self.rows))


def table_of(table: TokenTable) -> np.ndarray:
    """An array over the rows, which can be written."""
    width, rows = table
    return np.frombuffer(rows, np.float32).reshape(-1, width)


def packed_table(rows: np.ndarray) -> TokenTable:
    """The opposite of `table_of`, over the same memory."""
    return rows.shape[1], cast(bytearray, rows.data.cast("B") if rows.size else b"")


def activated_rows(table: np.ndarray, activation: PoolingActivation) -> np.ndarray:
    """The rows `[N, K]` float32 after an activation, each as if it were alone. A row of zeros stays one."""
    if activation == "none":
        return table
    values = table.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # rows that are not finite are found, and refused, elsewhere
        if activation == "sigmoid":
            values = 1 / (1 + np.exp(-values))
        elif activation == "softmax":
            values = np.exp(values - values.max(1, keepdims=True))
            values /= _row_sums(values)
        else:
            norms = np.sqrt(_row_sums(np.square(values)))
            values /= np.where(norms, norms, 1.0)
    return values.astype(np.float32)


def _row_sums(table: np.ndarray) -> np.ndarray:  # [N, K] -> [N, 1] float64
    """Sums of rows, each in an order that depends on K alone."""
    return np.add.reduceat(table.reshape(-1), np.arange(0, table.size, table.shape[1]))[:, None]


Pooled = PooledRows | TokenRows
"""The rows of a sequence that pools."""


def pooled_of(request: GenerateRequest, num_slots: int = 0) -> Pooled | None:
    """The empty rows of a request; None: it draws tokens. `num_slots`: places before its prompt, of an encoder."""
    pooling, token_ids = request.pooling, request.prompt_token_ids
    if pooling is None:
        return None
    if pooling.kind == "all":
        return TokenRows(pooling, token_ids[pooling.first :], num_slots + pooling.first)
    return PooledRows(pooling.kind, len(token_ids))
