"""AttentionLayout: the spans of one step, and the slots of their keys and values.

`Ops.prepare_attention` converts it once per step into the form that its version of attention needs. All layers of a KV
cache group share the result.
"""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """S spans with T tokens in all. The tokens of a span are consecutive rows; the spans are in order.

    Args:
        query_lens: tokens of each span in this step, at least 1 each; they sum to T.
        context_lens: tokens of each sequence that are in the cache once this step's are written: `start + query_len`.
        block_tables: `[S, max_blocks]` int64. Only the entries that the context covers, from `first_keys` on, are
            read; the rest may be anything, and so may the slots outside, including NaN.
        slot_mapping: `[T]` int64, where the key and value of each row are written.
        block_size: tokens per block.
        window: the most tokens that a row sees, its own included; None: all up to its own.
    """

    query_lens: list[int]
    context_lens: list[int]
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    block_size: int
    window: int | None = None

    @property
    def first_keys(self) -> list[int]:
        """The first position of each sequence that a row of this step sees."""
        if self.window is None:
            return [0] * self.num_spans
        spans = zip(self.query_lens, self.context_lens, strict=True)
        return [max(context_len - query_len + 1 - self.window, 0) for query_len, context_len in spans]

    @property
    def num_spans(self) -> int:
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
        return sum(self.query_lens)


class PreparedAttention(Protocol):
    """The result of `Ops.prepare_attention`. Models use its slots only and pass it on."""

    @property
    def slot_mapping(self) -> torch.Tensor:
        """`[T]` int64."""
        ...
