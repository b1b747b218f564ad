"""Attention over the paged cache: the decode kernel for spans of one token, the prefill kernel for longer ones."""

import torch
from torch import Tensor

from lullm.errors import UnsupportedError
from lullm.ops.attention_layout import AttentionLayout
from lullm.ops.layer_cache import LayerCache
from lullm.ops.triton.decode_attention import launch_decode
from lullm.ops.triton.device import launch_device
from lullm.ops.triton.layout import DeviceLayout, new_semaphores
from lullm.ops.triton.prefill_attention import launch_prefill
from lullm.ops.triton.rope_cache import check_cache
from lullm.ops.triton.tile import decode_tile, prefill_tile


def prepare_attention(layout: AttentionLayout) -> DeviceLayout:
    """For steps that come from the host as they are: copies the layout to the device. Does not wait for it."""
    starts = [0]
    for query_len in layout.query_lens:
        starts.append(starts[-1] + query_len)
    device = launch_device()
    numbers = _to_device(torch.tensor(starts + layout.context_lens, dtype=torch.int32), device)
    query_starts, context_lens = numbers.split([len(starts), layout.num_spans])
    return DeviceLayout(
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=_to_device(layout.block_tables.to(torch.int32), device).contiguous(),
        slot_mapping=_to_device(layout.slot_mapping, device),
        semaphores=new_semaphores(layout.num_spans, device),
        block_size=layout.block_size,
        max_query_len=max(layout.query_lens),
        max_context_len=max(layout.context_lens),
        num_prefill_tokens=sum(n for n in layout.query_lens if n > 1),
        num_prefill_spans=sum(n > 1 for n in layout.query_lens),
        window=layout.window,
    )


def _to_device(x: Tensor, device: torch.device) -> Tensor:
    if x.device == device:
        return x
    return x.pin_memory().to(device, non_blocking=True)


def attention(
    q: Tensor,
    cache: LayerCache,
    prepared: DeviceLayout,
    scale: float,
    soft_cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """See `Ops.attention`.

    A batch of decodes is one launch, whose grid depends on the number of spans alone; longer spans are another.
    """
    if soft_cap is not None or sinks is not None:
        raise UnsupportedError("the attention kernels have no soft cap and no sinks; use attention_backend='torch'")
    check_cache(cache, q.dtype)
    assert q.stride(2) == 1 and q.stride(1) == q.shape[2], "the heads of a row are in one piece"
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    kind = cache.key.dtype, q.shape[2]
    if prepared.max_query_len > 1:
        launch_prefill(out, q, cache, prepared, scale, prefill_tile(*kind))
    if prepared.max_query_len == 1 or len(q) < prepared.max_query_len * prepared.num_spans:  # not all are longest
        launch_decode(out, q, cache, prepared, scale, decode_tile(*kind))
    return out
