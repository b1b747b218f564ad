"""DeciLM: layers with a matrix in place of attention, or without a part; see `config.family.renamed.decilm`."""

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, LayerSpec, attention_alone, gated_mlp
from lullm.models.rules import rules_of
from lullm.nn.context import StepContext
from lullm.nn.linear import Linear
from lullm.nn.mlp import GatedMLP
from lullm.types.layer_kind import Nothing


class MatrixMixer(nn.Module):
    """A matrix in place of attention. Of workers that share the model each has it whole, and the first one's counts."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype):
        super().__init__()
        self.linear_attn = Linear(config.hidden_size, config.hidden_size, config.family.attention_bias, dtype)
        self.counts = config.share is None or config.share.axis.rank == 0

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        mixed: Tensor = self.linear_attn(x, context.ops)
        if not self.counts:
            context.ops.scale_(mixed, 0.0)
        return mixed


def _mixers(spec: LayerSpec) -> dict[str, nn.Module]:
    if spec.config.family.matrix_layers[spec.number]:
        return {"self_attn": MatrixMixer(spec.config, spec.dtype)}
    return {} if isinstance(spec.config.layer_kinds[spec.number], Nothing) else attention_alone(spec)


def _mlp(config: ModelConfig, layer: int, dtype: torch.dtype) -> GatedMLP | None:
    return gated_mlp(config, layer, dtype) if config.family.inner_size(layer) else None


def decilm_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config), make_mixers=_mixers, make_mlp=_mlp)
