"""Lightning attention (https://arxiv.org/abs/2401.04658): a linear attention whose heads forget at fixed rates.

It is a state space (Mamba 2) of steps of one size: keys write, queries read, and every head has its own.
"""

import math

import torch
from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.kv.cache_group import LayerPlace
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear
from lullm.nn.norm import RMSNorm, norm_rows_
from lullm.nn.recurrent.convolution import RecurrentMixer
from lullm.ops.state.weights import DecayWeights

_EPS = 1e-6
"""The epsilon of the norm on what is read. Configs do not have it."""
_ONE = math.log(math.e - 1)
"""Its softplus is 1, the size of a step."""


class LightningAttention(RecurrentMixer):
    """Project, move the state on and read it, norm, gate, project back."""

    a_log: Tensor
    ones: Tensor
    zeros: Tensor
    steps: Tensor

    def __init__(self, config: ModelConfig, layer: int, place: LayerPlace, dtype: torch.dtype):
        assert config.family.recurrent is not None, "of this family"
        super().__init__(config.family.recurrent, layer, place)
        self.activation, self.share = config.family.activation, config.share
        self.head_dim, num_heads = config.head_dim, config.num_attention_heads
        num_all = num_heads if self.share is None else self.share.whole.num_attention_heads
        first = 0 if self.share is None else self.share.first(num_heads, num_all)
        size = num_heads * config.head_dim
        self.qkvz_proj = FusedLinear(config.hidden_size, (3 * size, size), False, dtype, (size,) * 4)
        self.norm = RMSNorm(size, _EPS, dtype)
        self.out_proj = Linear(size, config.hidden_size, False, dtype)
        heads = torch.arange(first, first + num_heads, device="cpu") + 1
        # Later layers forget less; the last one, next to nothing.
        share_of_rate = 1 - layer / (config.num_hidden_layers - 1 + 1e-5) + 1e-5
        rates = torch.tensor(2 ** (-8 / num_all), device="cpu") ** heads * share_of_rate
        self.register_buffer("a_log", rates.log(), persistent=False)
        self.register_buffer("ones", torch.full((num_heads,), _ONE, device="cpu"), persistent=False)
        self.register_buffer("zeros", torch.zeros(num_heads, device="cpu"), persistent=False)
        self.register_buffer("steps", torch.zeros(1, num_heads, dtype=dtype, device="cpu"), persistent=False)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, state = context.ops, self.state(context)
        kqv, z = self.qkvz_proj(x, ops).split(self.qkvz_proj.part_sizes, dim=-1)  # [T, 3 * I], [T, I]
        kqv = ops.activate(kqv, self.activation).unflatten(-1, (-1, self.head_dim))  # [T, 3 * H, D]
        num_heads = len(self.a_log)
        kq, v = kqv.split((2 * num_heads, num_heads), dim=1)
        weights = DecayWeights(self.a_log, self.ones, self.zeros)
        out = ops.state_space(v, kq, self.steps.expand(len(x), -1), weights, state).flatten(1)
        norm_rows_(((out, self.norm),), 1 if self.share is None else self.share.axis.size, ops)
        ops.multiply_(out, z, "sigmoid")
        return self.out_proj(out, ops)
