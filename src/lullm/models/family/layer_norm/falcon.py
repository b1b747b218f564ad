"""Falcon (https://arxiv.org/abs/2311.16867): attention and MLP in parallel, without gates.

7B has one key head for all queries and one norm; 40B has groups of heads, and a norm for attention and for the MLP.
"""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, DecoderStyle, plain_mlp
from lullm.models.family.layer_norm.parallel import MLPNormLayer, ParallelLayer, layer_norm
from lullm.models.rules import rules_of
from lullm.weights.rule import HeadOrder, renames

RENAMES = renames(
    (r"^transformer\.", ""),
    (r"^(?=(word_embeddings|h|ln_f)\.)", "model."),
    (r"^model\.word_embeddings\.", "model.embed_tokens."),
    (r"^model\.ln_f\.", "model.norm."),
    (r"^model\.h\.", "model.layers."),
    (r"\.ln_attn\.", ".input_layernorm."),
    (r"\.ln_mlp\.", ".post_attention_layernorm."),
    (r"\.self_attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.self_attention\.dense\.", ".self_attn.o_proj."),
    (r"\.mlp\.dense_h_to_4h\.", ".mlp.fc1."),
    (r"\.mlp\.dense_4h_to_h\.", ".mlp.fc2."),
)


def of_each_group(config: ModelConfig) -> HeadOrder:
    """A checkpoint holds the queries of a group, its key and its value together; here all queries come first."""
    size, num_groups = config.head_dim, config.num_key_value_heads
    num_queries = config.num_attention_heads // num_groups
    parts = (range(num_queries), (num_queries,), (num_queries + 1,))
    order = (
        (group * (num_queries + 2) + head) * size + row
        for part in parts
        for group in range(num_groups)
        for head in part
        for row in range(size)
    )
    return HeadOrder(re.compile(r"\.qkv_proj\."), tuple(order))


def falcon_style(config: ModelConfig) -> DecoderStyle:
    family = config.family
    rules = replace(rules_of(config).plus(RENAMES), fusions=(), head_orders=(of_each_group(config),))
    make_layer = DecoderLayer
    if family.has_parallel_mlp:
        make_layer = MLPNormLayer if family.has_mlp_norm else ParallelLayer
    return DecoderStyle(rules, make_norm=layer_norm, make_mlp=plain_mlp, make_layer=make_layer)
