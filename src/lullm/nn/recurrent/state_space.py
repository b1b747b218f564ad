"""State space (Mamba 2, https://arxiv.org/abs/2405.21060): a mixer with a state matrix per head."""

import torch
from torch import Tensor

from lullm.config.layer.recurrent import StateSpaceConfig
from lullm.kv.cache_group import LayerPlace
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.nn.norm import RMSNorm
from lullm.nn.recurrent.convolution import Convolution, RecurrentMixer
from lullm.ops.state.weights import DecayWeights


class StateSpace(RecurrentMixer):
    """Project, convolve, update the state and read it, gate, norm, project back."""

    config: StateSpaceConfig

    def __init__(
        self, config: StateSpaceConfig, hidden_size: int, eps: float, layer: int, place: LayerPlace, dtype: torch.dtype
    ):
        super().__init__(config, layer, place)
        part_sizes = (config.inner_size, config.num_channels, config.num_heads)
        channels = (config.inner_size, config.group_size, config.group_size)
        shared_sizes = (config.inner_size, *channels, config.num_heads)
        self.in_proj = FusedLinear(hidden_size, part_sizes, config.projection_bias, dtype, shared_sizes)
        self.conv1d = Convolution(channels, config.kernel_size, config.convolution_bias, dtype)
        self.dt_bias, self.A_log, self.D = (meta_parameter((config.num_heads,), torch.float32) for _ in range(3))
        self.norm = None if config.gate == "no norm" else RMSNorm(config.inner_size, eps, dtype)
        self.out_proj = Linear(config.inner_size, hidden_size, config.output_bias, dtype)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        config, ops, state = self.config, context.ops, self.state(context)
        z, mixed, dt = self.in_proj(x, ops).split(self.in_proj.part_sizes, dim=-1)  # [T, I], [T, C], [T, H]
        mixed = self.conv1d(mixed, True, state, ops)
        values, bc = mixed.split((config.inner_size, 2 * config.group_size), dim=-1)
        weights = DecayWeights(self.A_log, self.dt_bias, self.D, config.least_step, config.most_step)
        out = ops.state_space(
            values.unflatten(-1, (-1, config.head_dim)), bc.unflatten(-1, (-1, config.state_size)), dt, weights, state
        ).flatten(1)  # [T, I]
        if self.norm is None:
            ops.multiply_(out, z, "silu")
        else:
            groups = out.unflatten(-1, (config.num_groups, -1))  # [T, G, I / G]
            out = ops.gated_rms_norm(groups, z, self.norm.weight, self.norm.eps, config.gate == "before norm")
        return self.out_proj(out, ops)
