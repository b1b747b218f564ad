"""Laguna (https://huggingface.co/poolside/Laguna-XS.2): layers with a window may have more query heads, and rotate
another part of a head. A gate per head multiplies the result of attention. The router has sigmoids and a correction.
"""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.experts.routed import GLM_RENAMES, experts_or_mlp, with_gates_apart
from lullm.models.rules import rules_of
from lullm.weights.rule import HeadOrder, Rename, rotated_first

CORRECTION = Rename(re.compile(r"\.mlp\.experts\.(?=e_score_correction_bias$)"), ".mlp.gate.")


def head_orders(config: ModelConfig) -> tuple[HeadOrder, ...]:
    """The orders of layers that rotate a part of every head, by the size of that part."""
    size = config.head_dim
    parts = [size if rope is None else rope.rotary_dim(size) for rope in config.family.ropes]
    orders = []
    for part in sorted({*parts} - {size}):
        numbers = "|".join(str(layer) for layer, own in enumerate(parts) if own == part)
        pattern = re.compile(rf"^model\.layers\.({numbers})\.self_attn\.[qk]_(proj|norm)\.")
        orders.append(HeadOrder(pattern, rotated_first(size, part)))
    return tuple(orders)


def laguna_style(config: ModelConfig) -> DecoderStyle:
    rules = with_gates_apart(rules_of(config)).plus(renames=(*GLM_RENAMES, CORRECTION))
    rules = replace(rules, head_orders=head_orders(config))
    return DecoderStyle(rules, qk_norm="heads", make_mlp=experts_or_mlp)
