"""Qwen 1; see `config.family.renamed.qwen`."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.renamed.llama_like import GATES
from lullm.models.rules import rules_of
from lullm.weights.rule import renames

RENAMES = renames(
    (r"^transformer\.", ""),
    (r"^wte\.", "model.embed_tokens."),
    (r"^ln_f\.", "model.norm."),
    (r"^h\.", "model.layers."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.attn\.c_attn\.", ".self_attn.qkv_proj."),
    (r"\.attn\.c_proj\.", ".self_attn.o_proj."),
    (r"\.mlp\.w2\.", ".mlp.gate_proj."),
    (r"\.mlp\.w1\.", ".mlp.up_proj."),
    (r"\.mlp\.c_proj\.", ".mlp.down_proj."),
)
SAVED = re.compile(r"(^|\.)rotary_emb\.inv_freq$|\.attn\.masked_bias$")
"""Computed, yet saved by older checkpoints."""


def qwen_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(replace(rules_of(config).plus(RENAMES, drops=(SAVED,)), fusions=GATES))
