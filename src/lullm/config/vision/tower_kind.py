"""What each `model_type` of a tower means, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lullm.config.vision.vision import Positions, TowerNorm, TowerTraits

_CLIP: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip
_SIGLIP = _CLIP | {"patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
_IDEFICS3 = _SIGLIP | {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
OF_LLAVA = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip
"""The tower of a LLaVA file without a `vision_config`."""
_INTERNVIT = OF_LLAVA | {
    "image_size": 448, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "attention_bias": False, "use_qk_norm": False,
    "norm_type": "layer_norm", "use_absolute_position_embeddings": True, "use_mean_pooling": True,
}  # fmt: skip
_QWEN2_5_VL = {
    "hidden_size": 3584, "intermediate_size": 3420, "num_hidden_layers": 32, "num_attention_heads": 16,
    "patch_size": 14, "hidden_act": "silu", "spatial_merge_size": 2, "temporal_patch_size": 2, "rope_parameters": {},
    "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
_QWEN2_VL = {
    "hidden_size": 1280, "mlp_ratio": 4, "num_hidden_layers": 32, "num_attention_heads": 16, "patch_size": 14,
    "hidden_act": "quick_gelu", "spatial_merge_size": 2, "temporal_patch_size": 2, "rope_parameters": {},
}  # fmt: skip
_QWEN3_VL = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "spatial_merge_size": 2, "temporal_patch_size": 2,
    "rope_parameters": {}, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
}  # fmt: skip
_GLM4V = {
    "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 12,
    "patch_size": 14, "image_size": 336, "hidden_act": "silu", "layer_norm_eps": 1e-5, "attention_bias": False,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "rope_parameters": {}, "connector_size": 13696,
}  # fmt: skip
_PIXTRAL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 16, "hidden_act": "gelu", "rope_parameters": {}, "rope_theta": 10000.0, "head_dim": None,
}  # fmt: skip
_PADDLE = _SIGLIP | {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 384, "patch_size": 14, "spatial_merge_size": 2, "rope_parameters": {},
}  # fmt: skip
_PHI4 = _SIGLIP | {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 448, "patch_size": 14, "crop_size": 448, "image_token_id": 200010, "feature_layer": -2,
}  # fmt: skip
_GEMMA4 = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 12, "head_dim": 64, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    "patch_size": 16, "rope_parameters": {}, "rope_theta": 100.0, "pooling_kernel_size": 3,
    "position_embedding_size": 10240, "use_clipped_linears": False, "standardize": False,
    "attention_bias": False,
}  # fmt: skip
_QWEN_FIXED = {"layer_norm_eps": 1e-6}
_QWEN_NAMES = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads"}


@dataclass(frozen=True, slots=True)
class TowerKind(TowerTraits):
    """What a `model_type` means. `defaults`: the values of missing keys, as in transformers' config classes; a key that
    is not among them is not read. `fixed`: values that no file changes. `names`: its own words for keys, and ours.
    `is_rotary`: heads rotate by line and column. `positions`, `post_norm`: see TowerConfig; a file may say that there
    are none.
    """

    defaults: Mapping[str, Any]
    positions: Positions = "each"
    post_norm: TowerNorm | None = "layer_norm"
    is_rotary: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


_IDEFICS3_KIND = TowerKind(_IDEFICS3, "nearest")
_QWEN2_VL_KIND = TowerKind(
    _QWEN2_VL,
    "none",
    has_patch_bias=False,
    is_rotary=True,
    is_fused=True,
    fixed=_QWEN_FIXED,
    names=_QWEN_NAMES | {"embed_dim": "hidden_size", "hidden_size": "out_hidden_size"},
)
_QWEN3_VL_KIND = TowerKind(_QWEN3_VL, "linear", is_rotary=True, is_fused=True, fixed=_QWEN_FIXED, names=_QWEN_NAMES)
_QWEN3_5_KIND = replace(_QWEN3_VL_KIND, defaults=_QWEN3_VL | {"deepstack_visual_indexes": []})
_QWEN2_5_VL_KIND = TowerKind(
    _QWEN2_5_VL,
    "none",
    has_patch_bias=False,
    is_rotary=True,
    post_norm="rms_norm",
    is_gated=True,
    is_fused=True,
    fixed=_QWEN_FIXED | {"norm_type": "rms_norm"},
    names=_QWEN_NAMES,
)
_QWEN2_5_OMNI_KIND = replace(_QWEN2_5_VL_KIND, is_fused=False)
_GLM4V_KIND = TowerKind(
    _GLM4V,
    "cubic",
    post_norm="rms_norm",
    is_rotary=True,
    is_gated=True,
    is_fused=True,
    has_bias=False,
    has_patch_norm=True,
    fixed={"norm_type": "rms_norm"},
    # Its MLPs are as wide as the decoder's rows; what a file calls intermediate_size is the connector's.
    names=_QWEN_NAMES
    | {"rms_norm_eps": "layer_norm_eps", "out_hidden_size": "intermediate_size", "intermediate_size": "connector_size"},
)
_GLM_OCR_KIND = replace(
    _GLM4V_KIND,
    defaults={key: value for key, value in _GLM4V.items() if key not in ("image_size", "connector_size")}
    | {"hidden_size": 1024, "num_attention_heads": 16, "attention_bias": True, "out_hidden_size": 1536},
    positions="none",
    has_bias=True,
    has_patch_norm=False,
    has_head_norms=True,
    names=_QWEN_NAMES | {"rms_norm_eps": "layer_norm_eps"},
)
_PADDLE_KIND = TowerKind(_PADDLE, "middle", is_rotary=True)
KINDS: Mapping[str, TowerKind] = {
    "clip_vision_model": TowerKind(_CLIP, has_class_row=True, has_patch_bias=False, has_pre_norm=True),
    "siglip_vision_model": TowerKind(_SIGLIP),
    "idefics3_vision": _IDEFICS3_KIND,
    "idefics3": _IDEFICS3_KIND,
    "smolvlm_vision": _IDEFICS3_KIND,
    "internvl_vision": TowerKind(_INTERNVIT, has_class_row=True, is_batched=True, has_scales=True),
    "intern_vit_6b": TowerKind(
        _INTERNVIT | {"use_mean_pooling": True},
        has_class_row=True,
        is_batched=True,
        has_scales=True,
        is_fused=True,
        post_norm=None,
        names={"qkv_bias": "attention_bias", "qk_normalization": "use_qk_norm"},
    ),
    "qwen2_vl_vision": _QWEN2_VL_KIND,
    "qwen2_vl": _QWEN2_VL_KIND,
    "qwen2_5_vl_vision": _QWEN2_5_VL_KIND,
    "qwen2_5_vl": _QWEN2_5_VL_KIND,
    "qwen2_5_omni_vision_encoder": _QWEN2_5_OMNI_KIND,
    "qwen3_vl_vision": _QWEN3_VL_KIND,
    "qwen3_vl": _QWEN3_VL_KIND,
    "qwen3_vl_moe_vision": _QWEN3_VL_KIND,
    "qwen3_vl_moe": _QWEN3_VL_KIND,
    "qwen3_5_vision": _QWEN3_5_KIND,
    "qwen3_5": _QWEN3_5_KIND,
    "qwen3_5_moe_vision": _QWEN3_5_KIND,
    "qwen3_5_moe": _QWEN3_5_KIND,
    "glm4v_vision": _GLM4V_KIND,
    "glm4v": _GLM4V_KIND,
    "glm4v_moe_vision": _GLM4V_KIND,
    "glm4v_moe": _GLM4V_KIND,
    "glm_ocr_vision": _GLM_OCR_KIND,
    "paddleocr_vl_vision": _PADDLE_KIND,
    "paddleocr_vl": _PADDLE_KIND,
    "phi4_multimodal_vision": TowerKind(_PHI4, "nearest"),
    "gemma4_vision": TowerKind(
        _GEMMA4,
        "axes",
        has_patch_bias=False,
        post_norm=None,
        is_rotary=True,
        in_halves=True,
        is_gated=True,
        has_bias=False,
        channels_last=True,
        has_result_norms=True,
        has_head_norms=True,
        has_value_norms=True,
        attention_scale=1.0,
        fixed={"norm_type": "rms_norm", "attention_bias": False},
        names={"hidden_activation": "hidden_act", "rms_norm_eps": "layer_norm_eps"},
    ),
    "pixtral": TowerKind(
        _PIXTRAL,
        "none",
        has_patch_bias=False,
        has_pre_norm=True,
        post_norm=None,
        is_rotary=True,
        is_gated=True,
        alternates=True,
        has_bias=False,
        fixed={"layer_norm_eps": 1e-5, "norm_type": "rms_norm", "attention_bias": False},
    ),
}
