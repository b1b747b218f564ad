"""Attention over the paged cache: the decode kernel for spans of one token, the prefill kernel for longer ones."""

from dataclasses import replace

import torch
from torch import Tensor

from lullm.ops import grouped_attention
from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.triton.decode_attention import launch_decode
from lullm.ops.triton.prefill_attention import launch_prefill, launch_tiles
from lullm.ops.triton.rope_cache import check_cache
from lullm.ops.triton.tile import decode_tile, invariant_tile, prefill_tile, split_tile


def prepare_attention(layout: DeviceLayout) -> DeviceLayout:
    """The kernels read the layout itself."""
    return layout


def attention(q: Tensor, cache: LayerCache, prepared: DeviceLayout, scores: CausalScores) -> Tensor:
    """See `Ops.attention`.

    A batch of decodes is one launch, whose grid depends on the number of spans only; longer spans are a second launch.
    """
    out = _new_result(q, cache)
    kind = cache.key.dtype, q.shape[2]
    if prepared.max_query_len > 1:
        launch_prefill(out, q, cache, prepared, scores, prefill_tile(*kind))
    if prepared.num_prefill_spans < prepared.num_spans:  # a launch for none took the host 20 us per layer
        launch_decode(out, q, cache, prepared, scores, decode_tile(*kind))
    return out


def every_attention(q: Tensor, cache: LayerCache, prepared: DeviceLayout, scores: CausalScores) -> Tensor:
    """See `Ops.compile_attention`: the prefill kernel whole, with smaller tiles, and with split keys."""
    out = _new_result(q, cache)
    tile = prefill_tile(cache.key.dtype, q.shape[2])
    for chosen, splits in ((tile, 1), (split_tile(tile), 1), (split_tile(tile), 2)):
        launch_tiles(out, q, cache, prepared, scores, chosen, splits, False)
    launch_decode(out, q, cache, prepared, scores, decode_tile(cache.key.dtype, q.shape[2]))
    return out


def invariant_attention(q: Tensor, cache: LayerCache, prepared: DeviceLayout, scores: CausalScores) -> Tensor:
    """The same in one launch of one tile, so that a row's bits depend only on its own sequence."""
    out = _new_result(q, cache)
    tile = invariant_tile(cache.key.dtype, q.shape[2])
    launch_tiles(out, q, cache, prepared, scores, tile, 1, True)
    return out


def gathered_attention(q: Tensor, cache: LayerCache, prepared: DeviceLayout, scores: CausalScores) -> Tensor:
    """The same in torch: gathers keys and values through the block tables, then calls torch's fused kernels.

    For comparison, and for features that the kernels lack. It reads the lengths on the host, so every layer waits for
    the device, and no graph can record it.
    """
    layout = prepared.on_host()
    # Rows of padding see one arbitrary key; their results are set to zeros.
    starts = prepared.query_starts.tolist()
    padding = [start for start, context_len in zip(starts, layout.context_lens, strict=False) if not context_len]
    layout = replace(
        layout,
        context_lens=[max(context_len, 1) for context_len in layout.context_lens],
        block_tables=layout.block_tables.clamp(0, cache.num_blocks - 1),
    )
    grouped = grouped_attention.prepare_attention(layout).to(q.device)
    out = grouped_attention.attention(q, cache, grouped, scores)
    out[padding] = 0
    return out


def _new_result(q: Tensor, cache: LayerCache) -> Tensor:
    check_cache(cache, q.dtype, q.shape[2])
    assert q.stride(2) == 1 and q.stride(1) == q.shape[2], "the heads of a row are in one piece"
    return torch.empty(q.shape, dtype=q.dtype, device=q.device)
