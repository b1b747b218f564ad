"""OLMo 2 (https://arxiv.org/abs/2501.00656), OLMo 3 (https://arxiv.org/abs/2512.13961), FlexOlmo, which has experts
(https://arxiv.org/abs/2507.07024), and EXAONE 4 (https://arxiv.org/abs/2507.11407).

Norms come after attention and MLP, not before. Queries and keys of a row are normed over all heads. OLMo 3 has windows
in three of four layers, with the plain rope. EXAONE 4 norms every head separately.
"""

from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, DecoderStyle, LayerSpec, new_norm, summed
from lullm.models.family.experts.routed import experts_or_mlp
from lullm.models.rules import rules_of
from lullm.nn.context import StepContext


class OlmoLayer(DecoderLayer):
    """One layer with norms after attention and MLP, under the checkpoint's names."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        del self.input_layernorm
        self.post_feedforward_layernorm = new_norm(spec.config, spec.dtype)

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, Tensor]:
        """See `DecoderLayer.forward`."""
        ops = context.ops
        residual = summed(hidden, residual, ops)
        hidden = self.mix(residual, context)
        ops.add_(residual, self.post_attention_layernorm(hidden, ops))
        hidden = self.feed(residual, ops)
        return self.post_feedforward_layernorm(hidden, ops), residual


def olmo_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config), qk_norm="rows", make_mlp=experts_or_mlp, make_layer=OlmoLayer)


def exaone4_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config), qk_norm="heads", make_layer=OlmoLayer)
