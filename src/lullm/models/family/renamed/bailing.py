"""Ling and Ring; see `config.family.renamed.bailing`. A checkpoint holds queries, keys and values as one tensor."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.experts.routed import GLM_RENAMES, experts_or_mlp
from lullm.models.family.renamed.llama_like import GATES
from lullm.models.rules import drafts_of, rules_of
from lullm.weights.rule import HeadOrder, renames, rotated_first

RENAMES = renames(
    (r"^model\.word_embeddings\.", "model.embed_tokens."),
    (r"\.attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.attention\.query_layernorm\.", ".self_attn.q_norm."),
    (r"\.attention\.key_layernorm\.", ".self_attn.k_norm."),
    (r"\.attention\.dense\.", ".self_attn.o_proj."),
    (r"\.mlp\.gate\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
)


def bailing_style(config: ModelConfig) -> DecoderStyle:
    family, size = config.family, config.head_dim
    rules = replace(rules_of(config, *RENAMES, *GLM_RENAMES), fusions=GATES)
    if family.has_drafts:
        rules = rules.plus(drops=(drafts_of(config),))
    if (part := family.rotary_dim(size)) != size:
        order, num_heads = rotated_first(size, part), config.num_attention_heads + config.num_key_value_heads
        matrices = HeadOrder(re.compile(r"\.qkv_proj\."), order, num_heads)
        rules = replace(rules, head_orders=(matrices, HeadOrder(re.compile(r"\.self_attn\.[qk]_norm\."), order)))
    return DecoderStyle(rules, qk_norm=family.qk_norm, make_mlp=experts_or_mlp)
