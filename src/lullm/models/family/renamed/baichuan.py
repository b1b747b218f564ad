"""Baichuan; see `config.family.renamed.baichuan`."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.renamed.llama_like import GATES
from lullm.models.rules import rules_of
from lullm.weights.rule import renames

RENAMES = renames((r"\.self_attn\.W_pack\.", ".self_attn.qkv_proj."))


def baichuan_style(config: ModelConfig) -> DecoderStyle:
    rules = replace(rules_of(config, *RENAMES), fusions=GATES)
    if config.family.norms_head:
        rules = rules.plus(normalizes=(re.compile(r"^lm_head\.weight$"),))
    return DecoderStyle(rules)
