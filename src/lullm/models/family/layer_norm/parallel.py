"""Attention and MLP in parallel: both read the same hidden states, and one sum is added to the residual stream.

So workers that share a layer sum once, not twice (GPT-J, Wang and Komatsuzaki, 2021).
"""

import torch
from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, LayerSpec
from lullm.nn.context import StepContext
from lullm.nn.norm import LayerNorm
from lullm.weights.rule import renames


class ParallelLayer(DecoderLayer):
    """One layer with one norm for both; with `MLPNormLayer` the MLP has its own."""

    has_own_norm = False

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        if not self.has_own_norm:
            del self.post_attention_layernorm

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, Tensor]:
        """See `DecoderLayer.forward`."""
        ops = context.ops
        hidden, residual = self.norm_input(hidden, residual, ops)
        assert self.mlp is not None, "of families with one in every layer"
        total: Tensor = self.mlp(self.post_attention_layernorm(residual, ops) if self.has_own_norm else hidden, ops)
        ops.add_(total, self.mix_here(hidden, context))
        ops.all_reduce_(total)
        return total, residual


class MLPNormLayer(ParallelLayer):
    """The same with a norm before the MLP, too. Both norms read the residual stream."""

    has_own_norm = True


def layer_norm(config: ModelConfig, dtype: torch.dtype, has_weight: bool = True, has_bias: bool = True) -> LayerNorm:
    """A norm over a row of hidden states."""
    return LayerNorm(config.hidden_size, config.family.rms_norm_eps, dtype, has_weight, has_bias)


LOGIT_BIAS = renames((r"^lm_head\.bias$", "logit_bias.weight"))
UNGATED_RENAMES = renames((r"\.mlp\.up_proj\.", ".mlp.fc1."), (r"\.mlp\.down_proj\.", ".mlp.fc2."))
"""For families without gates and with Llama's names of matrices."""
