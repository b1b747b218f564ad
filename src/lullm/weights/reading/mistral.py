"""Tensors of Mistral's own layout, under the names and in the order of the same model in transformers' layout."""

import re
from pathlib import Path

from torch import Tensor

from lullm.config.field import MOST_HEADS, optional_object, positive_int
from lullm.config.json_file import read_object
from lullm.config.mistral.layout import PARAMS_FILE
from lullm.weights.rule import renames

_RENAMES = renames(
    (r"^tok_embeddings\.", "model.embed_tokens."),
    (r"^norm\.", "model.norm."),
    (r"^output\.", "lm_head."),
    (r"^layers\.", "model.layers."),
    (r"^(model\.layers\.\d+)\.attention_norm\.", r"\1.input_layernorm."),
    (r"^(model\.layers\.\d+)\.ffn_norm\.", r"\1.post_attention_layernorm."),
    (r"^(model\.layers\.\d+)\.attention\.w([qkvo])\.", r"\1.self_attn.\2_proj."),
    # latent vectors
    (r"^(model\.layers\.\d+)\.attention\.wkv_a_with_mqa\.", r"\1.self_attn.kv_a_proj_with_mqa."),
    (r"^(model\.layers\.\d+)\.attention\.w(q_a|q_b|kv_b)\.", r"\1.self_attn.\2_proj."),
    (r"^(model\.layers\.\d+)\.attention\.(q_a|kv_a)_norm\.", r"\1.self_attn.\2_layernorm."),
    # a tower
    (r"^vision_encoder\.", "vision_tower."),
    (r"^(vision_tower\.transformer\.layers\.\d+\.attention)\.w([qkvo])\.", r"\1.\2_proj."),
    (r"^vision_language_adapter\.w_in\.", "multi_modal_projector.linear_1."),
    (r"^vision_language_adapter\.w_out\.", "multi_modal_projector.linear_2."),
    (r"^(?=patch_merger\.)", "multi_modal_projector."),
    (r"^pre_mm_projector_norm\.", "multi_modal_projector.norm."),
    # scales of 8 bits
    (r"\.qscale_weight$", ".weight_scale_inv"),
    (r"\.qscale_act$", ".activation_scale"),
    (r"^(model\.layers\.\d+)\.(feed_forward\.)?(experts|gate|shared_experts)\.", r"\1.mlp.\3."),
    (r"^(model\.layers\.\d+)\.feed_forward\.", r"\1.mlp."),
    (r"(?<=\.)w1\.", "gate_proj."),
    (r"(?<=\.)w2\.", "down_proj."),
    (r"(?<=\.)w3\.", "up_proj."),
)
_ROTATED = re.compile(r"^(?:model|vision_tower\.transformer)\.layers\.\d+\.(?:self_attn|attention)\.([qk])_proj\.")


class MistralNames:
    """The names and the order of rows of a folder's tensors. Raises ModelLoadError: params.json is damaged."""

    def __init__(self, folder: Path):
        params = read_object(folder / PARAMS_FILE)
        tower = optional_object(params, "vision_encoder")
        heads = positive_int(params, "n_heads", most=MOST_HEADS)
        tower_heads = positive_int(tower, "num_attention_heads", 1, MOST_HEADS)
        self._num_heads = {
            ("model", "q"): heads,
            ("model", "k"): positive_int(params, "n_kv_heads", heads, MOST_HEADS),
            ("vision_tower", "q"): tower_heads,
            ("vision_tower", "k"): tower_heads,
        }

    def of(self, name: str) -> str:
        """The name in transformers' layout."""
        for rename in _RENAMES:
            name = rename.pattern.sub(rename.replacement, name)
        return name

    def in_order(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor of this name (of transformers' layout), with rows in its order.

        Here neighbours of a query or key are rotated together, there element i of a head's first half and its second.
        """
        match = _ROTATED.match(name)
        if match is None or not tensor.ndim or len(tensor) == 1:
            return tensor
        heads = self._num_heads[name.partition(".")[0], match[1]]
        if len(tensor) % (2 * heads):
            return tensor  # the loader reports its shape
        return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
