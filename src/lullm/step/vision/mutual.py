"""Rows of pictures that see each other: the attention of these rows, beside that of all others, which is causal.

Each of these rows is a span of one token whose context ends where its picture does. So every version of attention can
compute it as it is, and a row's bits do not depend on where a chunk of its prompt begins. With a sliding window a row
sees as far back as it would from its own position, not from the end of the picture: then its table lists the slots that
it sees, one by one.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from lullm.nn.context import MutualRows
from lullm.ops.device_layout import DeviceLayout, new_semaphores
from lullm.ops.table import Ops
from lullm.step.batch import MutualPlace


def mutual_rows(
    layouts: Sequence[DeviceLayout], places: Sequence[MutualPlace], ops: Ops, in_windows: bool = False
) -> list[list[MutualRows]]:
    """The rows at `places` of a batch, by KV cache group. Does not wait for the device.

    Args:
        layouts: by KV cache group, of the batch.
        in_windows: only in groups with windows.
    """
    most = max(place.num_rows for place in places)
    semaphores = new_semaphores(most, ops.semaphores_per_span, layouts[0].slot_mapping.device)
    of_rows = [replace(layout, semaphores=semaphores) for layout in layouts]
    return [
        []
        if layout.is_state or (in_windows and layout.window is None)
        else [_rows(layout, place, ops) for place in places]
        for layout in of_rows
    ]


def _rows(layout: DeviceLayout, place: MutualPlace, ops: Ops) -> MutualRows:
    table, rows, num_rows = (
        layout.block_tables[place.span],
        slice(place.first, place.first + place.num_rows),
        place.num_rows,
    )
    like = layout.context_lens
    ends = torch.full((num_rows,), place.end, dtype=like.dtype, device=like.device)
    window, is_by_slot = layout.window, layout.window is not None and place.end > layout.window
    tables = table.expand(num_rows, -1)  # of all rows, in the same memory
    if window is not None and is_by_slot:
        positions = torch.arange(place.end - num_rows, place.end, dtype=like.dtype, device=like.device)
        firsts = (positions - (window - 1)).clamp_(min=0)
        seen = torch.arange(min(place.end, window - 1 + num_rows), dtype=like.dtype, device=like.device)
        seen = (firsts[:, None] + seen).clamp_(max=place.end - 1)  # [R, positions]
        tables = table[seen // layout.block_size] * layout.block_size + seen % layout.block_size
        ends = ends - firsts
    own = replace(
        layout,
        query_starts=torch.arange(num_rows + 1, dtype=like.dtype, device=like.device),
        context_lens=ends,
        block_tables=tables,
        slot_mapping=layout.slot_mapping[rows],
        block_size=1 if is_by_slot else layout.block_size,
        max_query_len=1,
        max_context_len=min(place.end, tables.shape[1]) if is_by_slot else place.end,
        num_prefill_tokens=0,
        num_prefill_spans=0,
        window=None,
    )
    return MutualRows(rows, ops.prepare_attention(own), is_by_slot)
