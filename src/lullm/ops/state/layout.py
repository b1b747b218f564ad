"""StateLayout: the spans of a step as recurrent layers read them, and the way of states into blocks and out of them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout

Shapes = tuple[tuple[int, ...], ...]
"""Of a state's tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class StateLayout:
    """S spans of T tokens in all, in the order of their rows. Rows that only fill up a batch are no span.

    Args:
        query_lens: tokens of each span in this step, at least 1 each.
        is_first: `[S]` bool, the span begins its sequence: it starts with a state of zeros.
        block_tables: `[S, M]`, by sequence the blocks of the states of all layers.
        slot_mapping: `[T]`; recurrent layers write no slots.
    """

    query_lens: list[int]
    is_first: Tensor
    block_tables: Tensor
    slot_mapping: Tensor

    @staticmethod
    def of(layout: DeviceLayout) -> "StateLayout":
        """Waits for the device."""
        starts, contexts = layout.query_starts.tolist(), layout.context_lens.tolist()
        lens = [end - start for start, end in zip(starts, starts[1:], strict=False)]
        num_spans = sum(context > 0 for context in contexts)
        spans = list(zip(lens, contexts, strict=True))[:num_spans]
        device = layout.block_tables.device
        return StateLayout(
            query_lens=lens[:num_spans],
            is_first=torch.tensor([query == context for query, context in spans], device=device),
            block_tables=layout.block_tables[:num_spans],
            slot_mapping=layout.slot_mapping,
        )

    @property
    def num_spans(self) -> int:
        return len(self.query_lens)

    @property
    def is_decode(self) -> bool:
        """One token per span."""
        return all(query_len == 1 for query_len in self.query_lens)

    def rows(self) -> list[slice]:
        """The rows of each span."""
        rows, first = [], 0
        for query_len in self.query_lens:
            rows.append(slice(first, first + query_len))
            first += query_len
        return rows


def read_states(cache: LayerCache, layout: StateLayout, part: int, shapes: Shapes) -> list[Tensor]:
    """The states `[S, *shape]` float32 of all spans in one layer; a copy of what the blocks hold.

    The blocks of a layer are those from `part` times their number on. First come their keys' pages, then the values'.
    """
    pages = _pages(cache)
    ids = _block_ids(cache, layout, part, shapes)
    sides = [side.index_select(0, ids.flatten()).view(layout.num_spans, -1) for side in pages]
    flat = torch.cat(sides, dim=1)  # [S, P], of which the first are the state's elements
    flat[layout.is_first] = 0.0
    states, first = [], 0
    for shape in shapes:
        size = math.prod(shape)
        states.append(flat[:, first : first + size].reshape(-1, *shape))
        first += size
    return states


def write_states(cache: LayerCache, layout: StateLayout, part: int, states: list[Tensor]) -> None:
    """Put states `[S, *shape]` float32 back to where `read_states` has found them."""
    shapes = tuple(tuple(state.shape[1:]) for state in states)
    ids = _block_ids(cache, layout, part, shapes)
    pages = _pages(cache)
    page_len = pages[0].shape[1]
    flat = torch.zeros(layout.num_spans, len(pages) * ids.shape[1] * page_len, device=ids.device)
    first = 0
    for state in states:
        size = state[0].numel()
        flat[:, first : first + size] = state.flatten(1)
        first += size
    for side, piece in zip(pages, flat.chunk(len(pages), dim=1), strict=True):
        side.index_copy_(0, ids.flatten(), piece.reshape(-1, page_len))


def _pages(cache: LayerCache) -> list[Tensor]:
    """`[num_blocks, P]` float32 each: all bits of the keys, and of the values, of a block."""
    return [side.flatten(1).view(torch.float32) for side in cache.tensors]


def _block_ids(cache: LayerCache, layout: StateLayout, part: int, shapes: Shapes) -> Tensor:
    """`[S, N]` int64: the blocks of one layer's state, as `kv.cache_group.num_state_blocks` counts them."""
    slot_bytes = sum(side[0].nbytes for side in cache.tensors)
    num_bytes = torch.float32.itemsize * sum(map(math.prod, shapes))
    num_blocks = -(-num_bytes // slot_bytes)
    return layout.block_tables[:, part * num_blocks : (part + 1) * num_blocks].long()
