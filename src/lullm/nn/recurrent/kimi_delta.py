"""Kimi Delta Attention (https://arxiv.org/abs/2510.26692): a gated delta net with a decay per element of a key."""

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


class KimiDelta(RecurrentMixer):
    """Project, convolve, update the state and read it, norm, gate, project back.

    Decays and gates are computed from vectors of a head's size.
    """

    config: DeltaNetConfig

    def __init__(
        self, config: DeltaNetConfig, hidden_size: int, eps: float, layer: int, place: LayerPlace, dtype: torch.dtype
    ):
        super().__init__(config, layer, place)
        size, low = config.value_size, config.value_head_dim
        self.qkv_proj = FusedLinear(hidden_size, (size, size, size), False, dtype)
        self.conv1d = Convolution((size, size, size), config.kernel_size, False, dtype)
        self.b_proj = Gate(hidden_size, config.num_value_heads, dtype)
        self.fg_down = FusedLinear(hidden_size, (low, low), False, dtype)
        self.f_b_proj, self.g_b_proj = (Linear(low, size, False, dtype) for _ in range(2))
        self.dt_bias = meta_parameter((size,), torch.float32)
        self.A_log = meta_parameter((config.num_value_heads,), torch.float32)
        self.o_norm = RMSNorm(low, eps, dtype)
        self.o_proj = Linear(size, hidden_size, False, dtype)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        config, ops, state = self.config, context.ops, self.state(context)
        mixed = self.conv1d(self.qkv_proj(x, ops), True, state, ops)
        heads = mixed.unflatten(-1, (-1, config.key_head_dim))  # [T, 3 * H, D]
        qk, v = heads.split((2 * config.num_key_heads, config.num_value_heads), dim=1)
        forgotten, gates = self.fg_down(x, ops).chunk(2, dim=-1)
        sizes = ops.join(self.b_proj(x, ops), self.f_b_proj(forgotten, ops))
        out = ops.gated_delta_rule(qk, v, sizes, DecayWeights(self.A_log, self.dt_bias), state)
        out = self.o_norm(out, ops).flatten(1)
        ops.multiply_(out, self.g_b_proj(gates, ops), "sigmoid")
        return self.o_proj(out, ops)
