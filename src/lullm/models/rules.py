"""The rules from a checkpoint's names to parameters that most families begin with."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.weights.rule import HeadOrder, Rename, Scale, WeightRules, decoder_rules, without_tower


def rules_of(config: ModelConfig, *renames: Rename) -> WeightRules:
    """The rules of a family that has Llama's names, with or without what reads pictures; `renames`: and others."""
    rotary_dim = config.family.rotary_dim(config.head_dim)
    rules = without_tower(decoder_rules(config.ties_head, config.head_dim, rotary_dim))
    rules = replace(rules, renames=(*rules.renames, *renames))
    if config.family.residual_scale == 1.0:
        return rules
    # Folded into the last matrices of attention and MLP: rounded as a product would be, without a pass of its own.
    return replace(rules, scales=(Scale(RESIDUAL, config.family.residual_scale),))


def with_one_gate_up(rules: WeightRules) -> WeightRules:
    """Where a checkpoint holds gates and ups as one tensor, or no gates."""
    return replace(rules, fusions=tuple(fusion for fusion in rules.fusions if fusion.into != "gate_up_proj"))


def used_first(num_unused: int, num_rows: int) -> HeadOrder:
    """The order of a table of positions whose first rows no token has: those come last."""
    return HeadOrder(re.compile(r"\.embed_positions\."), (*range(num_unused, num_rows), *range(num_unused)))


def drafts_of(config: ModelConfig) -> re.Pattern[str]:
    """The names of the layer after the last, which drafts tokens."""
    return re.compile(rf"^model\.layers\.{config.num_hidden_layers}\.")


RESIDUAL = re.compile(r"\.(o_proj|out_proj|down_proj)\.(weight|bias)$")
"""The matrices whose results are added to the residual stream."""
