"""StepContext: what the layers of a model may need of the step beside their hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lullm.ops.attention_layout import PreparedAttention
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.table import Ops


@dataclass(frozen=True, slots=True, eq=False)
class StepContext:
    """One step of T tokens, for one model.

    Args:
        positions: `[T]` int64, each below max_model_len.
        attention: by KV cache group, prepared by `ops`.
        caches: by layer. What the step computes is written into them.
        ops: the functions that the layers call.
        input_embeddings: `[T, H]` in place of the embedding of the token ids, scaled already; None: the ids' own.
        layer_inputs: `[T, L, P]`, by layer, what it reads of its tokens beside the hidden states; or `[T, 1, P]`, the
            same in all; None: nothing.
        stream: `[T, H]`, on a stage of a pipeline that is not the first: what the stage before gave. Layers write over
            it.
        calibrates: whether this step finds the open scales of an fp8 cache (`KVScales.calibrate`).
    """

    positions: Tensor
    attention: Sequence[PreparedAttention]
    caches: Sequence[LayerCache]
    ops: Ops
    input_embeddings: Tensor | None = None
    layer_inputs: Tensor | None = None
    stream: Tensor | None = None
    calibrates: bool = False
