"""The rules from a checkpoint's names to the parameters of what reads pictures."""

import re
from dataclasses import replace

from lullm.weights.rule import TOWER, WeightRules, renames

VISION_RENAMES = renames(
    (r"^(model\.)?(vision_tower|vision_model)\.(vision_model\.)?", "vision.tower."),
    (r"^vision\.tower\.encoder\.", "vision.tower."),
    (r"^vision\.tower\.pre_layrnorm\.", "vision.tower.pre_layernorm."),  # as CLIP spells it
    (r"^(model\.)?multi_modal_projector\.", "vision.connector."),
    (r"^(model\.)?connector\.modality_projection\.", "vision.connector."),
)
"""Older and newer names."""
_UNUSED = r"^vision\.tower\.(embeddings\.position_ids$|head\.)"


def with_vision(rules: WeightRules, num_layers: int, has_post_norm: bool) -> WeightRules:
    """The rules of a model that reads pictures. Later layers of the tower, and a norm that is not used, are dropped."""
    used = "|".join(map(str, range(num_layers)))
    unused = [re.compile(_UNUSED), re.compile(rf"^vision\.tower\.layers\.(?!({used})\.)")]
    if not has_post_norm:
        unused.append(re.compile(r"^vision\.tower\.post_layernorm\."))
    drops = tuple(pattern for pattern in rules.drops if pattern is not TOWER)
    return replace(rules, renames=(*VISION_RENAMES, *rules.renames), drops=(*drops, *unused))
