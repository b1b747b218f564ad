"""AttentionWatch: what tokens of a step attend to in an encoder's rows, by the heads that follow what it reads."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cache.reading import attention_weights
from lullm.step.batch import Batch
from lullm.step.encoder.split import CROSS_GROUP
from lullm.types.step import PooledPart


class AttentionWatch:
    """Takes the weights of `Batch.pooled_spans` while the layers of one step run (`StepContext.watch`).

    They go to the host layer by layer, since those of a whole step may take as much as its other memory.

    Args:
        heads: (layer, head) in the order of the result's columns.
        to_host: see `Device.to_host`.
    """

    def __init__(
        self,
        heads: Sequence[tuple[int, int]],
        batch: Batch,
        block_size: int,
        device: torch.device,
        to_host: Callable[[Tensor], Tensor],
    ):
        assert batch.encoder_lens is not None, "the model has an encoder"
        self._heads, self._to_host = heads, to_host
        self._spans = batch.pooled_spans
        self._slots: list[Tensor] = []
        starts = np.cumsum([0, *batch.query_lens])
        for span in self._spans:
            place = int(np.searchsorted(starts, span.rows[0], side="right")) - 1
            rows = np.arange(batch.encoder_lens[place])
            blocks = batch.block_tables[CROSS_GROUP, place, rows // block_size]
            self._slots.append(torch.from_numpy(blocks * block_size + rows % block_size).to(device))
        self._taken: list[dict[int, Tensor]] = [{} for _ in self._spans]

    def __call__(self, layer: int, q: Tensor, cache: LayerCache, scale: float) -> None:
        """See `Watch`."""
        columns = [column for column, (of_layer, _) in enumerate(self._heads) if of_layer == layer]
        if not columns:
            return
        heads = [self._heads[column][1] for column in columns]
        for span, slots, taken in zip(self._spans, self._slots, self._taken, strict=True):
            weights = attention_weights(q[slice(*span.rows)], cache, slots, scale, heads)
            taken |= dict(zip(columns, self._to_host(weights).unbind(1), strict=True))

    def parts(self) -> list[PooledPart]:
        """The results as plain data, `[rows, heads * R]` for each span. Once they are on the host."""
        found = []
        for span, taken in zip(self._spans, self._taken, strict=True):
            weights = torch.cat([taken[column] for column in range(len(self._heads))], dim=1)
            found.append(PooledPart(span.seq_id, span.num_rows, weights.numpy().tobytes()))
        return found
