"""Pooling: the rows that callers want, or their sums, for many sequences of a step at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from lullm.models.protocol import Model
from lullm.ops.table import Ops
from lullm.types.pooling.rows import RowRange
from lullm.types.step import PooledPart


class PooledSpan(NamedTuple):
    """A span that is pooled. `rows`: of the batch. `is_summed`: only their sum is wanted."""

    seq_id: int
    rows: RowRange
    is_summed: bool

    @property
    def num_rows(self) -> int:
        return self.rows[1] - self.rows[0]

    @property
    def num_parts(self) -> int:
        """Rows that go to the caller."""
        return 1 if self.is_summed else self.num_rows


@dataclass(frozen=True, slots=True)
class PooledStep:
    """The results of one step, span after span, on the device until `on_host`."""

    spans: Sequence[PooledSpan]
    values: Tensor  # [sum of `num_parts`, K] float32

    def on_host(self, to_host: Callable[[Tensor], Tensor]) -> "PooledStep":
        return replace(self, values=to_host(self.values))

    def parts(self) -> list[PooledPart]:
        """The results as plain data. Blocks until they are on the host."""
        values, found, first = self.values.numpy(), list[PooledPart](), 0
        for span in self.spans:
            end = first + span.num_parts
            found.append(PooledPart(span.seq_id, span.num_rows, values[first:end].tobytes()))
            first = end
        return found


def pool_rows(model: Model, ops: Ops, hidden: Tensor, spans: Sequence[PooledSpan]) -> PooledStep:
    """`Model.pool` of the rows of each span, summed where only that is wanted.

    `hidden [N, H]`: only those rows, span after span. The head computes only these rows.
    """
    lens = [span.num_rows for span in spans]
    if model.pools_means and all(span.is_summed for span in spans) and len(hidden) > len(spans):
        # The head sees one row of a span, the mean. Its result times the number of rows is the sum that is wanted.
        hidden = torch.stack([part.float().mean(0) for part in hidden.split(lens)]).to(hidden.dtype)
        return PooledStep(spans, model.pool(hidden, ops) * torch.tensor(lens, device=hidden.device)[:, None])
    values = model.pool(hidden, ops)  # [N, K]
    if any(span.num_parts < span.num_rows for span in spans):
        each = zip(spans, values.split(lens), strict=True)
        values = torch.cat([part.sum(0, keepdim=True) if span.is_summed else part for span, part in each])
    return PooledStep(spans, values.contiguous())
