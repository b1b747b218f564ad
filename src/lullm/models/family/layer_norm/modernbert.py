"""ModernBERT as a decoder (Ettin, https://arxiv.org/abs/2507.11412): norms without biases, one behind the embedding in
place of the first layer's, and a layer of its own before the head."""

from functools import partial

import torch
from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderLayer, DecoderStyle, LayerSpec
from lullm.models.family.layer_norm.parallel import layer_norm
from lullm.models.rules import rules_of, with_one_gate_up
from lullm.nn.linear import Linear
from lullm.ops.table import Ops
from lullm.weights.rule import renames

RENAMES = renames(
    (r"^model\.embeddings\.tok_embeddings\.", "model.embed_tokens."),
    (r"^model\.embeddings\.norm\.", "model.embed_norm."),
    (r"^model\.final_norm\.", "model.norm."),
    (r"^lm_head\.", "head_"),
    (r"^decoder\.bias$", "logit_bias.weight"),
    (r"^decoder\.", "lm_head."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.mlp_norm\.", ".post_attention_layernorm."),
    (r"\.attn\.Wo\.", ".self_attn.o_proj."),
    (r"\.attn\.", ".self_attn."),
    (r"\.mlp\.Wi\.", ".mlp.gate_up_proj."),
    (r"\.mlp\.Wo\.", ".mlp.down_proj."),
)
norm = partial(layer_norm, has_bias=False)


class ModernBertLayer(DecoderLayer):
    """One layer; the first reads what the norm behind the embedding gives."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        self.is_first = spec.number == 0
        if self.is_first:
            del self.input_layernorm

    def norm_input(self, hidden: Tensor, residual: Tensor | None, ops: Ops) -> tuple[Tensor, Tensor]:
        """See `DecoderLayer.norm_input`. What is added to must be another tensor than what is read."""
        return (hidden, ops.join(hidden, hidden[:, :0])) if self.is_first else super().norm_input(hidden, residual, ops)


class ModernBertCausalLM(CausalLM):
    """With a layer before the head."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        if config.stage.is_last:
            self.head_dense = Linear(config.hidden_size, config.hidden_size, False, dtype)
            self.head_norm = norm(config, dtype)

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.compute_logits`."""
        hidden = ops.activate(self.head_dense(hidden, ops), "gelu")
        return super().compute_logits(self.head_norm(hidden, ops), ops)


def modernbert_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(
        with_one_gate_up(rules_of(config).plus(RENAMES)),
        has_logit_bias=config.family.has_logit_bias,
        norms_embedding=True,
        make_norm=norm,
        make_layer=ModernBertLayer,
        make_model=ModernBertCausalLM,
    )
