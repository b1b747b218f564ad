"""StepContext: the facts of a step that a model's layers need beside their hidden states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from lullm.ops.attention_layout import CausalScores, PreparedAttention
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.table import Ops


@dataclass(frozen=True, slots=True, eq=False)
class ShownRows:
    """Rows of a picture, or given ones, in place of the embeddings of the tokens from row `first` on.

    `values`: `[1 + K, R, H]`. The first stand in that place; each of the others is added behind one of the first K
    layers.
    """

    first: int
    values: Tensor

    def put(self, hidden: Tensor) -> None:
        """Write into the embeddings `[T, H]`."""
        hidden[self.first : self.first + self.values.shape[1]] = self.values[0]

    def without(self, token_ids: Tensor, other_id: int) -> Tensor:
        """Token ids `[T]` with another one in these places."""
        first, end = self.first, self.first + self.values.shape[1]
        return torch.cat([token_ids[:first], token_ids.new_full((end - first,), other_id), token_ids[end:]])

    def add(self, hidden: Tensor, layer: int) -> None:
        """Add to the results `[T, H]` of a layer."""
        if layer + 1 < len(self.values):
            hidden[self.first : self.first + self.values.shape[1]] += self.values[layer + 1]


@dataclass(frozen=True, slots=True, eq=False)
class MutualRows:
    """Rows of a picture that see each other, in one KV cache group.

    Args:
        rows: of the step.
        attention: prepared for them alone, each as a span of one token that ends where the picture does.
        is_by_slot: its blocks are slots (`LayerCache.by_slot`).
    """

    rows: slice
    attention: PreparedAttention
    is_by_slot: bool

    def attend(self, out: Tensor, q: Tensor, cache: LayerCache, ops: Ops, scores: CausalScores) -> None:
        """Write their results into `out [T, Hq, D]`."""
        own = cache.by_slot() if self.is_by_slot else cache
        out[self.rows] = ops.attention(q[self.rows], own, self.attention, scores)


Watch = Callable[[int, Tensor, LayerCache, float], None]
"""(layer, q `[T, Hq, D]`, cache, scale) of one layer's attention, as `Ops.attention` has them."""


@dataclass(frozen=True, slots=True, eq=False)
class StepContext:
    """One step of T tokens, for one model.

    Args:
        positions: `[T]` int64, each below max_model_len: the row of the rotary table for each token.
        attention: by KV cache group, prepared by `ops`.
        caches: by layer. The step writes its keys and values into them.
        ops: the functions that the layers call.
        rotary: by layer, its table of cosines and sines (`Rotary`).
        distances: what attention of some encoders knows of two tokens' distance, in all layers: a bias on scores
            `[Hq, L, L]`, or rows `[R, H]`.
        layer_inputs: `[T, L, P]`, by layer, inputs per token beside the hidden states; or `[T, 1, P]`, the same for all
            layers; None: none.
        stream: `[T, H]`, on a pipeline stage after the first: the output of the stage before. Layers overwrite it.
        calibrates: whether this step sets the open scales of an fp8 cache (`KVScales.calibrate`).
        shown: rows of pictures and given ones. Only models with `Model.reads_shown` read them.
        planes: `[3, T]` int64, each below max_model_len, if tokens have several positions (`VisionConfig.axes`). Then
            `positions` are not read.
        query_lens: of the step's spans, in order. Only encoders read them, and the next.
        segments: `[T]` int64, which text of a pair a token is in; None: all in the first.
        mutual: by KV cache group, the rows that also see rows behind them; empty: none do.
        watch: is told of attention to an encoder's rows; None: nobody watches.
    """

    positions: Tensor
    attention: Sequence[PreparedAttention]
    caches: Sequence[LayerCache]
    ops: Ops
    rotary: Mapping[int, Tensor] = field(default_factory=dict)
    distances: Tensor | None = None
    layer_inputs: Tensor | None = None
    stream: Tensor | None = None
    calibrates: bool = False
    shown: Sequence[ShownRows] = ()
    planes: Tensor | None = None
    query_lens: Sequence[int] = ()
    segments: Tensor | None = None
    mutual: Sequence[Sequence[MutualRows]] = ()
    watch: Watch | None = None

    def with_rotary(self, rotary: Mapping[int, Tensor]) -> "StepContext":
        """For layers. With planes the tables are made for the step, so a token's position in them is its row."""
        positions, planes = self.positions, self.planes
        if planes is not None:
            positions = torch.arange(planes.shape[1], device=planes.device)
        return replace(self, rotary=rotary, positions=positions)
