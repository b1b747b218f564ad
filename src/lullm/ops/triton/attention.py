"""Attention over the paged cache: the decode kernel for spans of one token, the prefill kernel for longer ones."""

import torch
from torch import Tensor

from lullm.ops.device_layout import DeviceLayout
from lullm.ops.triton.decode_attention import launch_decode
from lullm.ops.triton.prefill_attention import launch_prefill
from lullm.ops.triton.rope_cache import check_cache
from lullm.ops.triton.tile import decode_tile, prefill_tile


def prepare_attention(layout: DeviceLayout) -> DeviceLayout:
    """The kernels read it as it is."""
    return layout


def attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    prepared: DeviceLayout,
    scale: float,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    """See `Ops.attention`. Scales are given both or not at all.

    A batch of decodes is one launch, whose grid depends on the number of spans alone; longer spans are another.
    """
    check_cache(key_cache, value_cache, q.dtype)
    assert q.stride(2) == 1 and q.stride(1) == q.shape[2], "the heads of a row are in one piece"
    scales = None if key_scales is None or value_scales is None else (key_scales, value_scales)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    kind = key_cache.dtype, q.shape[2]
    if prepared.max_query_len > 1:
        launch_prefill(out, q, key_cache, value_cache, prepared, scale, prefill_tile(*kind), scales)
    if prepared.max_query_len == 1 or len(q) < prepared.max_query_len * prepared.num_spans:  # not all are longest
        launch_decode(out, q, key_cache, value_cache, prepared, scale, decode_tile(*kind), scales)
    return out
