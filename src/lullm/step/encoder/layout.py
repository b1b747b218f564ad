"""The layout of attention to an encoder's rows: no row of a span hides from another, so each is a span of its own."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from lullm.ops.device_layout import DeviceLayout


def by_token(layout: DeviceLayout, query_lens: Sequence[int]) -> DeviceLayout:
    """The layout with a span for each token. All see the whole context of their span: they stand at its end.

    Args:
        query_lens: tokens of each span.
    """
    device = layout.block_tables.device
    # On the host, since only it knows the number of tokens without waiting for the device.
    span_of_token = torch.repeat_interleave(torch.tensor(query_lens)).to(device, non_blocking=True)
    starts = torch.arange(len(span_of_token) + 1, dtype=layout.query_starts.dtype, device=device)
    return replace(
        layout,
        query_starts=starts,
        context_lens=layout.context_lens[span_of_token],
        block_tables=layout.block_tables[span_of_token],
        max_query_len=1,
        num_prefill_tokens=0,
        num_prefill_spans=0,
    )
