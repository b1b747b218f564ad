"""Attention of a device's step in torch: keys and values gathered through the block tables, then torch's fused kernels.

For comparison with the kernels, and where they do not run. It reads the lengths on the host, so every layer waits for
the device, and no graph can record it.
"""

from torch import Tensor

from lullm.ops import grouped_attention
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.layer_cache import LayerCache
from lullm.ops.triton.layout import DeviceLayout


def attention(
    q: Tensor,
    cache: LayerCache,
    prepared: DeviceLayout,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `Ops.attention`. Blocking."""
    starts, context_lens = prepared.query_starts.tolist(), prepared.context_lens.tolist()
    # Rows that fill up a batch see one key, whichever it is, and give zeros in the end.
    padding = [row for row, context_len in zip(starts, context_lens, strict=False) if not context_len]
    layout = AttentionLayout(
        query_lens=[end - start for start, end in zip(starts, starts[1:], strict=False)],
        context_lens=[max(context_len, 1) for context_len in context_lens],
        block_tables=prepared.block_tables.cpu().long().clamp_(0, cache.num_blocks - 1),
        slot_mapping=prepared.slot_mapping,
        block_size=prepared.block_size,
        window=prepared.window,
    )
    grouped = grouped_attention.prepare_attention(layout).to(q.device)
    out = grouped_attention.attention(q, cache, grouped, scale, soft_cap, sinks)
    out[padding] = 0
    return out
