"""Phi-4-multimodal as its authors publish it (`Phi4MMForCausalLM`): its config.json in transformers' words."""

from typing import Any

from lullm.config.family.text_model import PHI4
from lullm.config.field import Data, optional_object, shown
from lullm.errors import ModelLoadError

PUBLISHED = "Phi4MMForCausalLM"
_OF_SOUNDS = {
    "attention_dim": "hidden_size", "attention_heads": "num_attention_heads", "linear_units": "intermediate_size",
    "depthwise_seperable_out_channel": "depthwise_separable_out_channel",
}  # fmt: skip
"""Its words for keys, and transformers'."""
_SAME = (
    "num_blocks", "activation", "chunk_size", "ext_pw_out_channel", "depthwise_multiplier", "kernel_size",
    "conv_activation", "input_size", "conv_glu_type", "time_reduction",
)  # fmt: skip
_ENCODER = {
    "input_layer": "nemo_conv", "causal": True, "cnn_layer_norm": True, "bias_in_glu": True, "ext_pw_kernel_size": 1,
}  # fmt: skip
_PICTURES = {
    "hd_transform_order": "sub_glb", "image_token_compression_cls": "avg_pool_2d", "projection_cls": "mlp",
    "use_hd_transform": True, "with_learnable_separator": True,
}  # fmt: skip
_SOUNDS = {"downsample_rate": 1, "projection_cls": "mlp", "use_qformer": False, "use_conv_downsample": False}
_DROPPED = ("audio_processor", "embd_layer", "img_processor", "vision_lora", "speech_lora", "model_type")


def in_own_words(data: dict[str, Any]) -> dict[str, Any]:
    """The same config.json, or, of `PUBLISHED`, one of transformers' class. Raises ModelLoadError."""
    names = data.get("architectures")
    if not isinstance(names, list) or names[:1] != [PUBLISHED]:
        return data
    layers, processor = optional_object(data, "embd_layer"), optional_object(data, "audio_processor")
    stated, of_pictures = optional_object(processor, "config"), optional_object(layers, "image_embd_layer")
    distances = optional_object(stated, "relative_attention_bias_args")
    _check(processor, {"name": "cascades"}, "audio_processor")
    _check(stated, _ENCODER, "audio_processor.config")
    _check(distances, {"type": "t5"}, "relative_attention_bias_args")
    _check(of_pictures, _PICTURES, "image_embd_layer")
    _check(optional_object(layers, "audio_embd_layer"), _SOUNDS, "audio_embd_layer")
    sounds = {_OF_SOUNDS.get(key, key): value for key, value in stated.items() if key in (*_OF_SOUNDS, *_SAME)}
    nested = {
        "nemo_conv_channels": optional_object(stated, "nemo_conv_settings").get("conv_channels"),
        "bias_max_distance": distances.get("t5_bias_max_distance"),
    }
    sounds |= {key: value for key, value in nested.items() if value is not None}
    pictures = {key: of_pictures[key] for key in ("crop_size",) if key in of_pictures}
    kept = {key: value for key, value in data.items() if key not in _DROPPED}
    return kept | {
        "architectures": [PHI4],
        "vision_config": {**optional_object(data, "vision_config"), **pictures},
        "audio_config": {**optional_object(data, "audio_config"), **sounds},
    }


def _check(stated: Data, known: Data, where: str) -> None:
    """Raises ModelLoadError: a value is not the one that is implemented."""
    for name, value in known.items():
        if stated.get(name, value) != value:
            raise ModelLoadError(f"config.json: {where}: {name} is {shown(stated[name])}, and only {value!r} is known")
