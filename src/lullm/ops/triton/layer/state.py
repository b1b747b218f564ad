"""The ops of recurrent layers, in torch: a step of decodes does not wait for the device, so that a graph can record it.

Rows of padding use the first row's sequence: they read its state and write its new state back. So they write nowhere
else, and their number need not be known. Other steps use torch's ops, which wait for the lengths of their spans.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lullm.ops.state import mixing, recurrence
from lullm.ops.state.layout import LayerState, StateLayout


@dataclass(eq=False)
class _Decodes(StateLayout):
    """The layout of a batch of decodes, including rows of padding."""

    @cached_property
    def is_real(self) -> Tensor:  # [S] bool
        return self.layout.context_lens > 0

    @cached_property
    def is_first(self) -> Tensor:  # [S] bool
        lens = self.layout.context_lens
        return torch.where(self.is_real, lens, lens[:1]) == 1

    @cached_property
    def block_tables(self) -> Tensor:  # [S, M]
        tables = self.layout.block_tables
        return torch.where(self.is_real.unsqueeze(1), tables, tables[:1])

    @property
    def num_spans(self) -> int:
        return self.layout.num_spans


class _DecodesState(LayerState):
    def write(self, index: int, states: Tensor) -> None:
        assert isinstance(self.layout, _Decodes)
        is_real = self.layout.is_real.view(-1, *[1] * (states.dim() - 1))
        super().write(index, torch.where(is_real, states, states[:1]))


_decodes: WeakKeyDictionary[StateLayout, _Decodes] = WeakKeyDictionary()
"""One per step, shared by all layers."""


def _of_decodes(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap an op, whose last argument is a `LayerState`, so that it does not wait in a step of decodes."""

    def op_of_decodes(*arguments: Any) -> Tensor:
        *given, state = arguments
        if state.layout.is_decode:
            layout = _decodes.setdefault(state.layout, _Decodes(state.layout.layout))
            state = _DecodesState(state.cache, layout, state.part, state.shapes)
        return op(*given, state)

    return op_of_decodes


causal_convolution = _of_decodes(mixing.causal_convolution_over(recurrence.convolve))
gated_delta_rule = _of_decodes(mixing.gated_delta_rule_over(recurrence.scan))
state_space = _of_decodes(mixing.state_space_over(recurrence.scan))
selective_scan = _of_decodes(mixing.selective_scan_over(recurrence.select))
rg_lru = _of_decodes(mixing.rg_lru_over(recurrence.unite))
