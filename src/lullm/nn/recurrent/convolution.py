"""Convolutions along the tokens, and the mixer of LFM2, a gated convolution (https://arxiv.org/abs/2511.23404)."""

import torch
from torch import Tensor, nn

from lullm.config.layer.recurrent import RecurrentConfig, ShortConvolutionConfig
from lullm.kv.cache_group import LayerPlace
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.ops.state.layout import LayerState, StateLayout
from lullm.ops.table import Ops


def state_of(config: RecurrentConfig, layer: int, place: LayerPlace, context: StepContext) -> LayerState:
    """The states of a layer, for the sequences of the step."""
    layout = context.attention[place.group]
    assert isinstance(layout, StateLayout), "the group of a recurrent layer"
    return LayerState(context.caches[layer], layout, place.part, config.state_shapes)


class Convolution(nn.Module):
    """A filter per channel, of weight `[C, 1, K]`.

    `shared_sizes`: the channels in parts. Workers that share the layer divide each part. A checkpoint may hold the
    filters of each part separately (`Fusion`).
    """

    def __init__(self, shared_sizes: tuple[int, ...], kernel_size: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.shared_sizes = self.part_sizes = shared_sizes
        num_channels = sum(shared_sizes)
        self.weight = meta_parameter((num_channels, 1, kernel_size), dtype)
        self.bias = meta_parameter((num_channels,), dtype) if bias else None

    def forward(self, x: Tensor, activates: bool, state: LayerState, ops: Ops) -> Tensor:  # [T, C] -> [T, C]
        return ops.causal_convolution(x, self.weight.flatten(1), self.bias, activates, state)


class ShortConvolution(nn.Module):
    """`out(c * convolution(b * x))` of three projections b, c, x.

    Args:
        layer: the number of its entry in `layer_kinds`. place: the place of its state.
    """

    def __init__(
        self, config: ShortConvolutionConfig, hidden_size: int, layer: int, place: LayerPlace, dtype: torch.dtype
    ):
        super().__init__()
        self.config = config
        self.layer = layer
        self.place = place
        size, bias = config.num_channels, config.has_bias
        self.in_proj = FusedLinear(hidden_size, (size, size, size), bias, dtype)
        self.conv1d = Convolution((size,), config.kernel_size, bias, dtype)
        self.out_proj = Linear(size, hidden_size, bias, dtype)

    def forward(self, x: Tensor, cos_sin_cache: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """The rotary table is not used."""
        ops, state = context.ops, state_of(self.config, self.layer, self.place, context)
        b, c, mixed = self.in_proj(x, ops).split(self.in_proj.part_sizes, dim=-1)  # [T, C] each
        ops.multiply_(mixed, b, None)
        out = self.conv1d(mixed, False, state, ops)
        ops.multiply_(out, c, None)
        return self.out_proj(out, ops)
