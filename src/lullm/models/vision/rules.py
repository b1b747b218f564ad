"""The rules from a checkpoint's names to the parameters of what reads pictures."""

import re
from dataclasses import replace

from lullm.config.vision.vision import TowerConfig
from lullm.weights.rule import TOWER, WeightRules, renames

VISION_RENAMES = renames(
    (r"^(model\.)?(vision_tower|vision_model)\.(vision_model\.)?", "vision.tower."),
    (r"^vision\.tower\.encoder\.", "vision.tower."),
    (r"^vision\.tower\.pre_layrnorm\.", "vision.tower.pre_layernorm."),  # as CLIP spells it
    # as InternViT spells them
    (r"^vision\.tower\.layer\.", "vision.tower.layers."),
    (r"(?<=^vision\.tower\.)layernorm\.", "post_layernorm."),
    (r"^(vision\.tower\.layers\.\d+\.)attention\.projection_layer\.", r"\1self_attn.out_proj."),
    (r"^(vision\.tower\.layers\.\d+\.)attention\.", r"\1self_attn."),
    (r"^(vision\.tower\.layers\.\d+\.)layernorm_before\.", r"\1layer_norm1."),
    (r"^(vision\.tower\.layers\.\d+\.)layernorm_after\.", r"\1layer_norm2."),
    (r"(?<=^vision\.tower\.embeddings\.)cls_token$", "class_embedding"),
    (r"(?<=^vision\.tower\.embeddings\.)position_embeddings$", "position_embedding.weight"),
    (r"(?<=^vision\.tower\.embeddings\.)patch_embeddings\.projection\.", "patch_embedding."),
    (r"^(model\.)?multi_modal_projector\.", "vision.connector."),
    (r"^(model\.)?connector\.modality_projection\.", "vision.connector."),
)
"""Older and newer names."""
_UNUSED = r"^vision\.tower\.(embeddings\.(position_ids|mask_token)$|head\.)"
_BATCHED = re.compile(r"^vision\.tower\.embeddings\.(class_embedding|position_embedding\.weight)$")


def with_vision(rules: WeightRules, tower: TowerConfig) -> WeightRules:
    """The rules of a model that reads pictures. Later layers of the tower, and a norm that is not used, are dropped."""
    used = "|".join(map(str, range(tower.num_layers)))
    unused = [re.compile(_UNUSED), re.compile(rf"^vision\.tower\.layers\.(?!({used})\.)")]
    if not tower.has_post_norm:
        unused.append(re.compile(r"^vision\.tower\.post_layernorm\."))
    drops = tuple(pattern for pattern in rules.drops if pattern is not TOWER)
    flattens = (*rules.flattens, _BATCHED) if tower.is_batched else rules.flattens
    return replace(rules, renames=(*VISION_RENAMES, *rules.renames), drops=(*drops, *unused), flattens=flattens)
