"""Phi-3 (https://arxiv.org/abs/2404.14219) and Phi-4: Llama with its matrices fused in the checkpoint.

Heads may be rotated in part. For long contexts every frequency is divided by its own factor (`longrope`).
"""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.rules import rules_of


def phi3_style(config: ModelConfig) -> DecoderStyle:
    """Queries, keys and values are one tensor; the heads of queries and keys are reordered."""
    rules = rules_of(config)
    num_heads = config.num_attention_heads + config.num_key_value_heads
    orders = tuple(
        replace(order, pattern=re.compile(r"\.qkv_proj\."), num_heads=num_heads) for order in rules.head_orders
    )
    return DecoderStyle(replace(rules, fusions=(), head_orders=orders))
