"""BLOOM (https://arxiv.org/abs/2211.05100) and MPT (https://www.databricks.com/blog/mpt-7b): scores fall with distance
(`nn.alibi`). BLOOM has a norm behind the embedding, MPT no biases."""

from dataclasses import replace
from functools import partial

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, plain_mlp
from lullm.models.family.layer_norm.falcon import RENAMES, of_each_group
from lullm.models.family.layer_norm.parallel import layer_norm
from lullm.models.rules import rules_of
from lullm.weights.rule import renames

EMBED_NORM = renames((r"^(transformer\.)?word_embeddings_layernorm\.", "model.embed_norm."))


MPT_RENAMES = renames(
    (r"^transformer\.", ""),
    (r"^wte\.", "model.embed_tokens."),
    (r"^norm_f\.", "model.norm."),
    (r"^blocks\.", "model.layers."),
    (r"\.norm_1\.", ".input_layernorm."),
    (r"\.norm_2\.", ".post_attention_layernorm."),
    (r"\.attn\.Wqkv\.", ".self_attn.qkv_proj."),
    (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.ffn\.up_proj\.", ".mlp.fc1."),
    (r"\.ffn\.down_proj\.", ".mlp.fc2."),
)


def bloom_style(config: ModelConfig) -> DecoderStyle:
    rules = rules_of(config).plus((*EMBED_NORM, *RENAMES))
    rules = replace(rules, fusions=(), head_orders=(of_each_group(config),))
    return DecoderStyle(rules, make_norm=layer_norm, make_mlp=plain_mlp, norms_embedding=True)


def mpt_style(config: ModelConfig) -> DecoderStyle:
    rules = replace(rules_of(config).plus(MPT_RENAMES), fusions=())
    return DecoderStyle(rules, make_norm=partial(layer_norm, has_bias=False), make_mlp=plain_mlp)
