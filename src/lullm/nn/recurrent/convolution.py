"""Convolutions along the tokens, and the mixer of LFM2, a gated convolution (https://arxiv.org/abs/2511.23404)."""

import torch
from torch import Tensor, nn

from lullm.config.layer.recurrent import RecurrentConfig, ShortConvolutionConfig
from lullm.kv.cache_group import LayerPlace
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.ops.state.layout import LayerState, StateLayout
from lullm.ops.table import Ops


class RecurrentMixer(nn.Module):
    """Keeps a state per sequence. Mixers are called with (hidden states `[T, H]`, a rotary table that they do not
    use, context), and give `[T, H]`.

    Args:
        layer: the number of its entry in `layer_kinds`. place: the place of its state.
    """

    def __init__(self, config: RecurrentConfig, layer: int, place: LayerPlace):
        super().__init__()
        self.config, self.layer, self.place = config, layer, place

    def state(self, context: StepContext) -> LayerState:
        """The states, for the sequences of the step."""
        layout = context.attention[self.place.group]
        assert isinstance(layout, StateLayout), "the group of a recurrent layer"
        return LayerState(context.caches[self.layer], layout, self.place.part, self.config.state_shapes)


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


class ShortConvolution(RecurrentMixer):
    """`out(c * convolution(b * x))` of three projections b, c, x."""

    def __init__(
        self, config: ShortConvolutionConfig, hidden_size: int, layer: int, place: LayerPlace, dtype: torch.dtype
    ):
        super().__init__(config, layer, place)
        size, bias = config.num_channels, config.has_bias
        self.in_proj = FusedLinear(hidden_size, (size, size, size), bias, dtype)
        self.conv1d = Convolution((size,), config.kernel_size, bias, dtype)
        self.out_proj = Linear(size, hidden_size, bias, dtype)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, state = context.ops, self.state(context)
        b, c, mixed = self.in_proj(x, ops).split(self.in_proj.part_sizes, dim=-1)  # [T, C] each
        ops.multiply_(mixed, b, None)
        out = self.conv1d(mixed, False, state, ops)
        ops.multiply_(out, c, None)
        return self.out_proj(out, ops)
