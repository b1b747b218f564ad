"""Gated delta net (https://arxiv.org/abs/2412.06464): a mixer whose memory of a sequence is one matrix per head."""

import torch
from torch import Tensor

from lullm.config.layer.recurrent import DeltaNetConfig
from lullm.kv.cache_group import LayerPlace
from lullm.nn.context import StepContext
from lullm.nn.experts import Gate
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.nn.norm import RMSNorm
from lullm.nn.recurrent.convolution import Convolution, RecurrentMixer
from lullm.ops.state.weights import DecayWeights


class StepSizes(FusedLinear, Gate):
    """Two numbers per value head: how much a token writes, and how much the state decays before. Never quantized."""

    def __init__(self, hidden_size: int, num_heads: int, dtype: torch.dtype):
        Linear.__init__(self, hidden_size, 2 * num_heads, False, dtype)
        self.part_sizes = self.shared_sizes = (num_heads, num_heads)


class GatedDeltaNet(RecurrentMixer):
    """Project, convolve, update the state and read it, norm, gate, project back.

    Args:
        is_apart: a checkpoint has separate matrices for queries, keys and values.
    """

    config: DeltaNetConfig

    def __init__(
        self,
        config: DeltaNetConfig,
        hidden_size: int,
        eps: float,
        layer: int,
        place: LayerPlace,
        dtype: torch.dtype,
        is_apart: bool = False,
    ):
        super().__init__(config, layer, place)
        channels = (config.key_size, config.key_size, config.value_size)
        part_sizes = (*channels, config.value_size) if is_apart else (config.num_channels, config.value_size)
        self.in_proj_qkvz = FusedLinear(hidden_size, part_sizes, False, dtype, (*channels, config.value_size))
        self.in_proj_ba = StepSizes(hidden_size, config.num_value_heads, dtype)
        self.conv1d = Convolution(channels, config.kernel_size, False, dtype)
        self.dt_bias = meta_parameter((config.num_value_heads,), torch.float32)
        self.A_log = meta_parameter((config.num_value_heads,), torch.float32)
        self.norm = RMSNorm(config.value_head_dim, eps, dtype)
        self.out_proj = Linear(config.value_size, hidden_size, False, dtype)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        config, ops, state = self.config, context.ops, self.state(context)
        mixed, z = self.in_proj_qkvz(x, ops).split(
            (config.num_channels, config.value_size), dim=-1
        )  # [T, C], [T, Hv * Dv]
        mixed = self.conv1d(mixed, True, state, ops)
        qk, v = mixed.split((2 * config.key_size, config.value_size), dim=-1)
        out = ops.gated_delta_rule(
            qk.unflatten(-1, (-1, config.key_head_dim)),
            v.unflatten(-1, (-1, config.value_head_dim)),
            self.in_proj_ba(x, ops),
            DecayWeights(self.A_log, self.dt_bias, most_beta=config.most_beta),
            state,
        )  # [T, Hv, Dv]
        return self.out_proj(ops.gated_rms_norm(out, z, self.norm.weight, self.norm.eps, False), ops)
