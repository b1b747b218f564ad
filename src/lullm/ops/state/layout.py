"""StateLayout: the spans of a step as recurrent layers read them. LayerState: where the states of one layer lie."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of a state's tensors."""


@dataclass(eq=False)
class StateLayout:
    """The prepared step of a group of recurrent layers. What waits for the device is found when it is first asked for.

    S spans of T tokens in all, in the order of their rows. Rows that only fill up a batch (context length 0) are no
    span.
    """

    layout: DeviceLayout

    @property
    def slot_mapping(self) -> Tensor:  # [T]
        """Recurrent layers write no slots."""
        return self.layout.slot_mapping

    @cached_property
    def query_lens(self) -> list[int]:
        """Tokens of each span in this step, at least 1 each."""
        starts = self.layout.query_starts.tolist()
        return [end - start for start, end in zip(starts, starts[1:], strict=False)][: len(self._context_lens)]

    @cached_property
    def _context_lens(self) -> list[int]:
        return [context for context in self.layout.context_lens.tolist() if context > 0]

    @cached_property
    def is_first(self) -> Tensor:  # [S] bool
        """The span begins its sequence: it starts with a state of zeros."""
        spans = zip(self.query_lens, self._context_lens, strict=True)
        return torch.tensor([query == context for query, context in spans], device=self.layout.block_tables.device)

    @property
    def block_tables(self) -> Tensor:  # [S, M]
        """By sequence the blocks of the states of all layers."""
        return self.layout.block_tables[: self.num_spans]

    @property
    def num_spans(self) -> int:
        return len(self.query_lens)

    @property
    def is_decode(self) -> bool:
        """One token per span."""
        return self.layout.max_query_len == 1

    @cached_property
    def rows(self) -> list[slice]:
        """The rows of each span."""
        rows, first = [], 0
        for query_len in self.query_lens:
            rows.append(slice(first, first + query_len))
            first += query_len
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class LayerState:
    """The states of all spans in one layer: float32 tensors of `shapes`, one behind the other, in blocks of the cache.

    The blocks of a layer are those from `part` times their number on. First come their keys' pages, then the values'.
    """

    cache: LayerCache
    layout: StateLayout
    part: int
    shapes: Shapes

    @property
    def num_blocks(self) -> int:
        """The blocks of one layer's state, as `kv.cache_group.num_state_blocks` counts them."""
        slot_bytes = sum(side[0].nbytes for side in self.cache.tensors)
        return -(-torch.float32.itemsize * sum(map(math.prod, self.shapes)) // slot_bytes)

    def offset(self, index: int) -> int:
        """Elements in front of the tensor `index`."""
        return sum(map(math.prod, self.shapes[:index]))

    def read(self, index: int) -> Tensor:
        """The tensors `[S, *shapes[index]]`; a copy of what the blocks hold, zeros for spans that begin."""
        pages, start = self._pages(index)
        flat = torch.cat([side.index_select(0, ids.flatten()).view(len(ids), -1) for side, ids in pages], dim=1)
        shape = self.shapes[index]
        states = flat[:, start : start + math.prod(shape)].reshape(-1, *shape)
        return states.masked_fill_(self.layout.is_first.view(-1, *[1] * len(shape)), 0.0)

    def write(self, index: int, states: Tensor) -> None:
        """Put tensors back to where `read` has found them."""
        pages, start = self._pages(index)
        flat = torch.cat([side.index_select(0, ids.flatten()).view(len(ids), -1) for side, ids in pages], dim=1)
        flat[:, start : start + states[0].numel()] = states.flatten(1)
        first = 0
        for side, ids in pages:
            end = first + ids.shape[1] * side.shape[1]
            side.index_copy_(0, ids.flatten(), flat[:, first:end].reshape(-1, side.shape[1]))
            first = end

    def _pages(self, index: int) -> tuple[list[tuple[Tensor, Tensor]], int]:
        """The pages that hold a tensor, in order: (side `[num_blocks, P]`, ids `[S, n]`). And where in them it starts.

        All bits of the keys of a block are a page of P float32, and all of its values.
        """
        sides = [side.flatten(1).view(torch.float32) for side in self.cache.tensors]
        page_len, num_blocks = sides[0].shape[1], self.num_blocks
        ids = self.layout.block_tables[:, self.part * num_blocks : (self.part + 1) * num_blocks].long()
        first, size = self.offset(index), math.prod(self.shapes[index])
        first_page, end_page = first // page_len, -(-(first + size) // page_len)
        pages = []
        for number, side in enumerate(sides):
            low, high = (min(max(page - number * num_blocks, 0), num_blocks) for page in (first_page, end_page))
            if low < high:
                pages.append((side, ids[:, low:high]))
        return pages, first - first_page * page_len
