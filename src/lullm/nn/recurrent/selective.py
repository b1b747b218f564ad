"""Selective scan (Mamba 1, https://arxiv.org/abs/2312.00752): a mixer with a state vector per channel."""

import torch
from torch import Tensor

from lullm.config.layer.recurrent import SelectiveConfig
from lullm.kv.cache_group import LayerPlace
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.nn.norm import RMSNorm
from lullm.nn.recurrent.convolution import Convolution, RecurrentMixer
from lullm.ops.state.weights import DecayWeights


class SelectiveScan(RecurrentMixer):
    """Project, convolve, compute step sizes, B and C, update the states, gate, project back."""

    config: SelectiveConfig

    def __init__(self, config: SelectiveConfig, hidden_size: int, layer: int, place: LayerPlace, dtype: torch.dtype):
        super().__init__(config, layer, place)
        size, bias = config.num_channels, config.projection_bias
        self.in_proj = FusedLinear(hidden_size, (size, size), bias, dtype)
        self.conv1d = Convolution((size,), config.kernel_size, config.convolution_bias, dtype)
        self.part_sizes = (config.step_rank, config.state_size, config.state_size)
        self.x_proj = Linear(size, sum(self.part_sizes), False, dtype)
        self.dt_proj = Linear(config.step_rank, size, False, dtype)
        self.dt_bias, self.D = (meta_parameter((size,), torch.float32) for _ in range(2))
        self.A_log = meta_parameter((size, config.state_size), torch.float32)
        self.norms: tuple[RMSNorm, ...] = ()
        if config.norm_eps is not None:
            self.dt_layernorm, self.b_layernorm, self.c_layernorm = self.norms = tuple(
                RMSNorm(size, config.norm_eps, dtype, config.has_norm_weights) for size in self.part_sizes
            )
        self.out_proj = Linear(size, hidden_size, bias, dtype)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, state = context.ops, self.state(context)
        mixed, z = self.in_proj(x, ops).split(self.in_proj.part_sizes, dim=-1)  # [T, I] each
        mixed = self.conv1d(mixed, True, state, ops)
        sizes = self.x_proj(mixed, ops)  # [T, R + 2 N]
        ops.all_reduce_(sizes)  # each worker that shares the channels has a part of every sum
        for part, norm in zip(sizes.split(self.part_sizes, dim=-1), self.norms, strict=False):
            norm.norm_(part, ops)
        low, bc = sizes.split((self.part_sizes[0], 2 * self.config.state_size), dim=-1)
        weights = DecayWeights(self.A_log, self.dt_bias, self.D)
        out = ops.selective_scan(mixed, bc, self.dt_proj(low, ops), weights, state)  # [T, I]
        ops.multiply_(out, z, "silu")
        return self.out_proj(out, ops)
