"""GPT-NeoX (https://arxiv.org/abs/2204.06745) and Pythia (https://arxiv.org/abs/2304.01373), GPT-J (Wang and
Komatsuzaki, 2021) and CodeGen (https://arxiv.org/abs/2203.13474), Phi-1 to Phi-2 (https://arxiv.org/abs/2309.05463):
attention and MLP side by side.

A part of each head is rotated, in GPT-J in pairs of neighbours. NeoX has a separate norm for the MLP, and older models
of its shape have attention and MLP one after the other.
"""

import re
from dataclasses import replace

from lullm.config.family.layer_norm.families import CODEGEN_PARTS
from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, DecoderStyle, plain_mlp
from lullm.models.family.glm import with_neighbours
from lullm.models.family.layer_norm.parallel import LOGIT_BIAS, MLPNormLayer, ParallelLayer, layer_norm
from lullm.models.rules import rules_of
from lullm.weights.rule import HeadOrder, WeightRules, renames, rotated_first

NEOX_RENAMES = renames(
    (r"^gpt_neox\.", "model."),
    (r"^(?=(embed_in|final_layer_norm)\.)", "model."),
    (r"^model\.embed_in\.", "model.embed_tokens."),
    (r"^model\.final_layer_norm\.", "model.norm."),
    (r"^embed_out\.", "lm_head."),
    (r"\.attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.attention\.dense\.", ".self_attn.o_proj."),
    (r"\.mlp\.dense_h_to_4h\.", ".mlp.fc1."),
    (r"\.mlp\.dense_4h_to_h\.", ".mlp.fc2."),
)
GPTJ_RENAMES = renames(
    (r"^transformer\.", ""),
    (r"^(?=(wte|h|ln_f)\.)", "model."),
    (r"^model\.wte\.", "model.embed_tokens."),
    (r"^model\.ln_f\.", "model.norm."),
    (r"^model\.h\.", "model.layers."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.attn\.(?=([qkv]|qkv)_proj\.)", ".self_attn."),
    (r"\.mlp\.fc_in\.", ".mlp.fc1."),
    (r"\.mlp\.fc_out\.", ".mlp.fc2."),
)
PHI_RENAMES = renames((r"^model\.final_layernorm\.", "model.norm."), (r"\.self_attn\.dense\.", ".self_attn.o_proj."))
SAVED_MASKS = re.compile(r"\.(attention|attn)\.(masked_)?bias$|\.rotary_emb\.inv_freq$")
"""Buffers that older checkpoints hold."""


def _of_each_head(config: ModelConfig) -> HeadOrder:
    """NeoX holds query, key and value of a head together, and all of them as one tensor."""
    num_heads, size = config.num_attention_heads, config.head_dim
    turned, kept = rotated_first(size, config.family.rotary_dim(size)), tuple(range(size))
    order = (
        (3 * head + part) * size + row
        for part, rows in enumerate((turned, turned, kept))
        for head in range(num_heads)
        for row in rows
    )
    return HeadOrder(re.compile(r"\.qkv_proj\."), tuple(order))


def gpt_neox_style(config: ModelConfig) -> DecoderStyle:
    rules = rules_of(config).plus(NEOX_RENAMES, drops=(SAVED_MASKS,))
    rules = replace(rules, fusions=(), head_orders=(_of_each_head(config),))
    make_layer = MLPNormLayer if config.family.has_parallel_mlp else DecoderLayer
    return DecoderStyle(rules, make_norm=layer_norm, make_mlp=plain_mlp, make_layer=make_layer)


def gptj_style(config: ModelConfig) -> DecoderStyle:
    return _gptj_style(with_neighbours(config))


def _gptj_style(rules: WeightRules) -> DecoderStyle:
    rules = rules.plus((*GPTJ_RENAMES, *LOGIT_BIAS), drops=(SAVED_MASKS,))
    return DecoderStyle(rules, has_logit_bias=True, make_norm=layer_norm, make_mlp=plain_mlp, make_layer=ParallelLayer)


def codegen_style(config: ModelConfig) -> DecoderStyle:
    """A checkpoint holds four parts of heads; each has queries, then values, then keys."""
    num_heads, size = config.num_attention_heads, config.head_dim
    turned = rotated_first(size, config.family.rotary_dim(size), has_neighbours=True)
    num_each = num_heads // CODEGEN_PARTS or 1  # of a worker's heads there are no parts
    order = tuple(
        (head // num_each * 3 * num_each + place * num_each + head % num_each) * size + row
        for place, rows in ((0, turned), (2, turned), (1, tuple(range(size))))
        for head in range(num_heads)
        for row in rows
    )
    rules = rules_of(config).plus(drops=(re.compile(r"\.attn\.causal_mask$"),))
    return _gptj_style(replace(rules, fusions=(), head_orders=(HeadOrder(re.compile(r"\.qkv_proj\."), order),)))


def phi_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(
        rules_of(config, *PHI_RENAMES, *LOGIT_BIAS),
        has_logit_bias=True,
        make_norm=layer_norm,
        make_mlp=plain_mlp,
        make_layer=ParallelLayer,
    )
