"""InternLM2, EXAONE 3, MiMo and Orion; see `config.family.renamed.llama_like`."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.layer_norm.falcon import of_each_group
from lullm.models.family.layer_norm.parallel import layer_norm
from lullm.models.rules import rules_of
from lullm.weights.rule import Fusion, renames

INTERNLM2_RENAMES = renames(
    (r"^(model\.)?tok_embeddings\.", "model.embed_tokens."),
    (r"^output\.", "lm_head."),
    (r"\.attention\.wqkv\.", ".self_attn.qkv_proj."),
    (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
)
EXAONE_RENAMES = renames(
    (r"^transformer\.", ""),
    (r"^wte\.", "model.embed_tokens."),
    (r"^ln_f\.", "model.norm."),
    (r"^h\.", "model.layers."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.attention\.out_proj\.", ".self_attn.o_proj."),
    (r"\.attn\.attention\.", ".self_attn."),
    (r"\.mlp\.c_fc_0\.", ".mlp.gate_proj."),
    (r"\.mlp\.c_fc_1\.", ".mlp.up_proj."),
    (r"\.mlp\.c_proj\.", ".mlp.down_proj."),
)
MIMO_DRAFTS = re.compile(r"^model\.mtp_layers\.")
GATES = (Fusion(("gate_proj", "up_proj"), "gate_up_proj"),)
"""The fusions of checkpoints that hold queries, keys and values as one tensor."""


def internlm2_style(config: ModelConfig) -> DecoderStyle:
    """A checkpoint holds the queries of a group, its key and its value together."""
    rules = rules_of(config, *INTERNLM2_RENAMES)  # behind those of a text model beside a tower (InternVL)
    return DecoderStyle(replace(rules, fusions=GATES, head_orders=(of_each_group(config),)))


def exaone_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config).plus(EXAONE_RENAMES))


def mimo_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config).plus(drops=(MIMO_DRAFTS,)))


def orion_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config), make_norm=layer_norm)
