"""Attention on a GPU in torch: gathers keys and values through the block tables, then calls torch's fused kernels.

It is for comparison with the kernels, and for cases that they lack. It reads the lengths on the host, so every layer
waits for the device, and no graph can record it.
"""

from dataclasses import replace

from torch import Tensor

from lullm.ops import grouped_attention
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout


def attention(
    q: Tensor,
    cache: LayerCache,
    prepared: DeviceLayout,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `Ops.attention`. Blocking."""
    layout = prepared.on_host()
    # Rows of padding see one key, any key, and give zeros in the end.
    starts = prepared.query_starts.tolist()
    padding = [start for start, context_len in zip(starts, layout.context_lens, strict=False) if not context_len]
    layout = replace(
        layout,
        context_lens=[max(context_len, 1) for context_len in layout.context_lens],
        block_tables=layout.block_tables.clamp(0, cache.num_blocks - 1),
    )
    grouped = grouped_attention.prepare_attention(layout).to(q.device)
    out = grouped_attention.attention(q, cache, grouped, scale, soft_cap, sinks)
    out[padding] = 0
    return out
