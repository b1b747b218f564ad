"""AttentionLayout: the spans of one step, and the slots of their keys and values. Attention, MutualAttention: the
signatures of the functions; CausalScores, MutualScores: what a row sees by them.

`Ops.prepare_attention` converts the layout once per step into the form that its version of attention needs. All layers
of a KV cache group share the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from lullm.ops.cache.layer_cache import LayerCache
from lullm.types.layer_kind import first_seen


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """S spans with T tokens in all. The tokens of a span are consecutive rows; the spans are in order.

    Args:
        query_lens: tokens of each span in this step, at least 1 each; they sum to T.
        context_lens: tokens of each sequence in the cache, this step's included: `start + query_len`.
        block_tables: `[S, max_blocks]` int64. Only entries of the context, from `first_keys` on, are read. Other
            entries, and the slots outside of the context, may hold anything, including NaN.
        slot_mapping: `[T]` int64, where the key and value of each row are written.
        block_size: tokens per block.
        window: the most tokens that a row sees, its own included; None: all up to its own.
        is_chunked: a row sees those from the last multiple of `window` on.
    """

    query_lens: list[int]
    context_lens: list[int]
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    block_size: int
    window: int | None = None
    is_chunked: bool = False

    @property
    def first_keys(self) -> list[int]:
        """The first position of each sequence that a row of this step sees."""
        starts = [end - length for end, length in zip(self.context_lens, self.query_lens, strict=True)]
        return [first_seen(start, self.window, self.is_chunked) for start in starts]

    def within_chunks(self) -> "AttentionLayout":
        """The same layout with a span for each chunk of a span's rows. The window hides no key of these."""
        if not self.is_chunked or self.window is None:
            return self
        parts = [
            (span, max(first, start), min(first + self.window, end))
            for span, (query_len, end) in enumerate(zip(self.query_lens, self.context_lens, strict=True))
            for start in [end - query_len]
            for first in range(first_seen(start, self.window, True), end, self.window)
        ]
        return replace(
            self,
            query_lens=[end - start for _, start, end in parts],
            context_lens=[end for _, _, end in parts],
            block_tables=self.block_tables[[span for span, _, _ in parts]],
        )

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


@dataclass(frozen=True, slots=True, eq=False)
class CausalScores:
    """How a row sees its own sequence up to its own position.

    Args:
        scale: a score is `q . k * scale`.
        soft_cap: then `cap * tanh(score / cap)` (https://arxiv.org/abs/2408.00118).
        sinks: `[Hq]` float32; `exp(sink)` of the head is added to the sum that the softmax divides by
            (https://arxiv.org/abs/2309.17453).
    """

    scale: float
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None


class Attention(Protocol):
    """See `Ops.attention`."""

    def __call__(self, q: torch.Tensor, cache: LayerCache, prepared: Any, scores: CausalScores, /) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class MutualScores:
    """How the rows of a span see each other.

    Args:
        scale: of the scores.
        reach: the row at place p of its span sees p - reach to p + reach; None: all.
        bias: `[Hq, L, L]` of the queries' type, with L of the longest span at least: added to the score of the rows at
            two places of a span.
    """

    scale: float
    reach: int | None = None
    bias: torch.Tensor | None = None


class MutualAttention(Protocol):
    """See `Ops.mutual_attention`."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lens: Sequence[int], scores: MutualScores, /
    ) -> torch.Tensor:
        """q `[T, Hq, D]`, k and v `[T, Hkv, D]`, all parts of longer rows or not -> `[T, Hq, D]`.

        Args:
            lens: of the spans, which follow one another and sum to T. A row sees rows of its own span only.
        """
        ...
