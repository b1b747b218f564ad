"""ChatGLM: matrices are fused in the checkpoint, and pairs of neighbours turn; see `config.family.renamed.chatglm`."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.rules import rules_of
from lullm.weights.rule import HeadOrder, renames, rotated_first

RENAMES = renames(
    (r"^transformer\.", ""),
    (r"^embedding\.word_embeddings\.", "model.embed_tokens."),
    (r"^encoder\.final_layernorm\.", "model.norm."),
    (r"^encoder\.layers\.", "model.layers."),
    (r"^output_layer\.", "lm_head."),
    (r"\.self_attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.self_attention\.dense\.", ".self_attn.o_proj."),
    (r"\.mlp\.dense_h_to_4h\.", ".mlp.gate_up_proj."),
    (r"\.mlp\.dense_4h_to_h\.", ".mlp.down_proj."),
)
FREQUENCIES = re.compile(r"(^|\.)rotary_pos_emb\.inv_freq$")


def chatglm_style(config: ModelConfig) -> DecoderStyle:
    size, num_heads = config.head_dim, config.num_attention_heads + config.num_key_value_heads
    order = rotated_first(size, config.family.rotary_dim(size), has_neighbours=True)
    rules = rules_of(config).plus(RENAMES, drops=(FREQUENCIES,))
    turned = HeadOrder(re.compile(r"\.qkv_proj\."), order, num_heads)
    return DecoderStyle(replace(rules, fusions=(), head_orders=(turned,)))
