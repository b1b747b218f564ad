"""Griffin's recurrent block (RG-LRU, https://arxiv.org/abs/2402.19427): a mixer with one number per channel."""

import torch
from torch import Tensor

from lullm.config.layer.recurrent import GatedUnitConfig
from lullm.kv.cache_group import LayerPlace
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.nn.recurrent.convolution import Convolution, RecurrentMixer
from lullm.ops.state.weights import UnitWeights
from lullm.types.arithmetic import Activation


class GatedUnit(RecurrentMixer):
    """Project, convolve, compute the gates by head, update the states, multiply by the other branch, project back."""

    config: GatedUnitConfig

    def __init__(
        self,
        config: GatedUnitConfig,
        hidden_size: int,
        activation: Activation,
        layer: int,
        place: LayerPlace,
        dtype: torch.dtype,
    ):
        super().__init__(config, layer, place)
        self.activation = activation
        size, heads = config.num_channels, (config.num_heads, config.head_dim)
        self.in_proj = FusedLinear(hidden_size, (size, size), True, dtype)
        self.conv1d = Convolution((size,), config.kernel_size, True, dtype)
        self.input_gate_weight, self.recurrent_gate_weight = (  # [heads, in, out] each
            meta_parameter((*heads, config.head_dim), dtype) for _ in range(2)
        )
        self.input_gate_bias, self.recurrent_gate_bias = (meta_parameter(heads, torch.float32) for _ in range(2))
        self.recurrent_param = meta_parameter((size,), torch.float32)
        self.out_proj = Linear(size, hidden_size, True, dtype)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, state = context.ops, self.state(context)
        other, mixed = self.in_proj(x, ops).split(self.in_proj.part_sizes, dim=-1)  # [T, I] each
        mixed = self.conv1d(mixed, False, state, ops)
        heads = mixed.unflatten(-1, (self.config.num_heads, -1))  # [T, heads, in]
        inputs, decays = (
            ops.multiply_heads(heads, weight.transpose(1, 2), 0).flatten(1)
            for weight in (self.input_gate_weight, self.recurrent_gate_weight)
        )
        biases = self.input_gate_bias.flatten(), self.recurrent_gate_bias.flatten()
        out = ops.rg_lru(mixed, inputs, decays, UnitWeights(self.recurrent_param, *biases), state)
        ops.multiply_(out, ops.activate(other, self.activation), None)
        return self.out_proj(out, ops)
