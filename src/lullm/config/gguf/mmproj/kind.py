"""The kinds of mmproj files (`clip.projector_type`): each as the config.json and image processor of the same model.

Keys are named in gguf's `constants.py`. What a file lacks, llama.cpp's programs have as constants, and the models'
own files say; the latter hold here, so that a picture has the tokens of the model's folder.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lullm.config.field import MOST_LAYERS, Data
from lullm.config.gguf.keys import Keys, short
from lullm.errors import ModelLoadError

_LLAVA, _MISTRAL3 = "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration"
_LARGEST = 1 << 26
_GELU, _TANH = "gelu", "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class Read:
    """What a file says, in the words of a model's folder."""

    architecture: str
    data: Data
    processor: Data


@dataclass(frozen=True, slots=True)
class Kind:
    """One `clip.projector_type`.

    Args:
        read: the file's keys, and the text model's own. Raises ModelLoadError.
        tokens: keys of config.json for the ids of tokens, and the words that these have in the vocabulary.
        last: the tensor of the decoder's rows, and the dimension of it that has their size.
    """

    read: Callable[[Keys, Keys], Read]
    tokens: Mapping[str, str]
    last: tuple[str, int]


def _gemma3(keys: Keys, text: Keys) -> Read:
    tower = _tower(keys, "siglip_vision_model", _TANH)
    num_sides = tower["image_size"] // tower["patch_size"] // (_whole(keys, "vision.projector.scale_factor", 4))
    processor = _processor(keys, "Gemma3", size=_square(tower))
    data = {"vision_config": tower, "mm_tokens_per_image": num_sides**2}
    return Read("Gemma3ForConditionalGeneration", data, processor)


def _qwen2_vl(keys: Keys, text: Keys) -> Read:
    tower = _qwen_tower(keys, "qwen2_vl", "quick_gelu")
    size = tower["hidden_size"]
    # `mlp_ratio` is rounded down to a size.
    ratio = (tower.pop("intermediate_size") + 0.5) / size
    tower |= {"embed_dim": size, "hidden_size": text.need("embedding_length"), "mlp_ratio": ratio}
    return _qwen(keys, text, "Qwen2VL", tower, _OF_QWEN2)


def _qwen2_5_vl(keys: Keys, text: Keys) -> Read:
    tower = _qwen_tower(keys, "qwen2_5_vl", "silu")
    every, depth = _whole(keys, "vision.n_wa_pattern"), tower["depth"]
    tower |= {
        "out_hidden_size": text.need("embedding_length"),
        "window_size": _whole(keys, "vision.window_size", _WINDOW),
        "fullatt_block_indexes": list(range(every - 1, depth, every)),
    }
    return _qwen(keys, text, "Qwen2_5_VL", tower, _OF_QWEN2)


def _qwen3_vl(keys: Keys, text: Keys) -> Read:
    name = {"qwen3vl": "Qwen3VL", "qwen3vlmoe": "Qwen3VLMoe", "qwen35": "Qwen3_5", "qwen35moe": "Qwen3_5Moe"}.get(
        text.file.architecture, ""
    )
    if not name:
        raise keys.fault(f"it is no tower of {text.file.architecture!r}")
    kind = {"Qwen3VL": "qwen3_vl", "Qwen3VLMoe": "qwen3_vl_moe", "Qwen3_5": "qwen3_5", "Qwen3_5Moe": "qwen3_5_moe"}
    tower = _qwen_tower(keys, kind[name], _TANH)
    tower |= {
        "out_hidden_size": text.need("embedding_length"),
        "num_position_embeddings": (tower.pop("image_size") // tower["patch_size"]) ** 2,
        "deepstack_visual_indexes": deep_layers(keys),
    }
    return _qwen(keys, text, name, tower, _OF_QWEN3)


_WINDOW = 112
"""Pixels on an edge of Qwen2.5-VL's windows; files do not say it."""
_OF_QWEN2 = (56 * 56, 28 * 28 * 16384)
_OF_QWEN3 = (1 << 16, 1 << 24)
"""The fewest and most pixels of a picture, by the released models' preprocessor_config.json. Files do not say them."""


def deep_layers(keys: Keys) -> list[int]:
    """The layers whose results are used, too (DeepStack)."""
    flags = keys.get("vision.is_deepstack_layers")
    is_list = flags is None or isinstance(flags, array) and len(flags) <= MOST_LAYERS
    if not is_list:
        raise keys.fault("clip.vision.is_deepstack_layers must have a truth value for each layer")
    return [layer for layer, is_deep in enumerate(flags or ()) if is_deep]


def _qwen_tower(keys: Keys, kind: str, activation: str) -> Data:
    tower = _tower(keys, kind, activation)
    del tower["layer_norm_eps"]  # files have that of the text model
    merge = _whole(keys, "vision.spatial_merge_size", 2)
    names = {"num_hidden_layers": "depth", "num_attention_heads": "num_heads"}
    tower = {names.get(name, name): value for name, value in tower.items()}
    return tower | {"spatial_merge_size": merge, "temporal_patch_size": 2}


def _qwen(keys: Keys, text: Keys, name: str, tower: Data, bounds: tuple[int, int]) -> Read:
    processor = _processor(
        keys,
        "Qwen2VL",
        patch_size=tower["patch_size"],
        merge_size=tower["spatial_merge_size"],
        temporal_patch_size=tower["temporal_patch_size"],
        min_pixels=_whole(keys, "vision.image_min_pixels", bounds[0]),
        max_pixels=_whole(keys, "vision.image_max_pixels", bounds[1]),
    )
    sections = text.get("rope.dimension_sections")
    rope = {} if sections is None else {"mrope_section": list(sections)[:3] if isinstance(sections, array) else None}
    of_text = {"hidden_size": text.need("embedding_length"), "rope_scaling": rope}
    return Read(f"{name}ForConditionalGeneration", {"vision_config": tower, "text_config": of_text}, processor)


def _idefics3(keys: Keys, text: Keys) -> Read:
    tower = _tower(keys, "idefics3_vision", _TANH)
    edge = tower["image_size"]
    longest = _whole(keys, "vision.preproc_image_size", 4 * edge)  # as all released models
    processor = _processor(
        keys, "Idefics3", size={"longest_edge": longest}, max_image_size={"longest_edge": edge}, do_image_splitting=True
    )
    factor = _whole(keys, "vision.projector.scale_factor", 2)
    return Read("Idefics3ForConditionalGeneration", {"vision_config": tower, "scale_factor": factor}, processor)


def _pixtral(keys: Keys, text: Keys) -> Read:
    tower = _tower(keys, "pixtral", _GELU)
    del tower["layer_norm_eps"]  # the model's code has its own
    processor = _processor(keys, "Pixtral", size={"longest_edge": tower["image_size"]})
    data: Data = {
        "vision_config": tower,
        "vision_feature_layer": -1,
        "projector_hidden_act": _GELU,
        "multimodal_projector_bias": keys.has("mm.1.bias"),
    }
    if not keys.has("mm.patch_merger.weight"):
        return Read(_LLAVA, data | {"vision_feature_select_strategy": "full"}, processor)
    eps = text.number("attention.layer_norm_rms_epsilon")
    data["text_config"] = {} if eps is None else {"rms_norm_eps": short(eps)}
    return Read(_MISTRAL3, data | {"spatial_merge_size": _whole(keys, "vision.spatial_merge_size", 1)}, processor)


def _internvl(keys: Keys, text: Keys) -> Read:
    tower = _tower(keys, "internvl_vision", _GELU)
    tower |= {
        "attention_bias": keys.has("v.blk.0.attn_q.bias"),
        "use_qk_norm": keys.has("v.blk.0.attn_q_norm.weight"),
        "norm_type": "layer_norm" if keys.has("v.blk.0.ln1.bias") else "rms_norm",
    }
    tiles = {
        f"{which}_patches": _whole(keys, f"vision.preproc_{which}_tiles", n) for which, n in (("min", 1), ("max", 12))
    }
    processor = _processor(keys, "GotOcr2", size=_square(tower), **tiles)
    data = {"vision_config": tower, "downsample_ratio": 1 / (_whole(keys, "vision.projector.scale_factor", 2))}
    return Read("InternVLForConditionalGeneration", data, processor)


def _tower(keys: Keys, kind: str, activation: str) -> Data:
    """A `vision_config`. `activation`: the one that `clip.use_gelu` means."""
    size, inner = _whole(keys, "vision.embedding_length"), keys.file.tensors.get("v.blk.0.ffn_up.weight")
    if inner is None or inner.num_values % size:
        raise keys.fault("it has no matrix v.blk.0.ffn_up.weight of the tower's size")
    eps = keys.number("vision.attention.layer_norm_epsilon")
    return {
        "model_type": kind,
        "hidden_size": size,
        "intermediate_size": inner.num_values // size,  # some files state another
        "num_hidden_layers": _whole(keys, "vision.block_count", most=MOST_LAYERS),
        "num_attention_heads": _whole(keys, "vision.attention.head_count"),
        "image_size": _whole(keys, "vision.image_size"),
        "patch_size": _whole(keys, "vision.patch_size"),
        "hidden_act": "silu" if keys.get("use_silu") else activation if keys.get("use_gelu") else "quick_gelu",
        "layer_norm_eps": None if eps is None else short(eps),
    }


def _whole(keys: Keys, key: str, default: int | None = None, most: int = _LARGEST) -> int:
    """The whole number of a key. Raises ModelLoadError: it is none, or missing without a default."""
    value = default if keys.get(key) is None else keys.need(key)
    if not isinstance(value, int) or value > most:
        raise keys.fault(f"clip.{key} must be a whole number from 1 to {most}, not {value!r:.80}")
    return value


def _processor(keys: Keys, kind: str, **stated: Any) -> Data:
    """The keys of a preprocessor_config.json."""
    colors = {name: _channels(keys, f"vision.{name}") for name in ("image_mean", "image_std")}
    return {"image_processor_type": f"{kind}ImageProcessor", **colors, **stated}


def _channels(keys: Keys, key: str) -> list[float]:
    values = keys.get(key)
    if not isinstance(values, array) or values.typecode not in "fd":
        raise keys.fault(f"clip.{key} must be a list of three numbers")
    return list(values)  # float32, as which they are used


def _square(tower: Data) -> Data:
    return {"height": tower["image_size"], "width": tower["image_size"]}


_QWEN_TOKENS, _QWEN_LAST = {"image_token_id": "<|image_pad|>"}, ("mm.2.weight", 0)
KINDS: Mapping[str, Kind] = {
    "gemma3": Kind(
        _gemma3,
        {
            "image_token_id": "<image_soft_token>",
            "boi_token_id": "<start_of_image>",
            "eoi_token_id": "<end_of_image>",
        },
        ("mm.input_projection.weight", 1),
    ),
    "qwen2vl_merger": Kind(_qwen2_vl, _QWEN_TOKENS, _QWEN_LAST),
    "qwen2.5vl_merger": Kind(_qwen2_5_vl, _QWEN_TOKENS, _QWEN_LAST),
    "qwen3vl_merger": Kind(_qwen3_vl, _QWEN_TOKENS, _QWEN_LAST),
    "idefics3": Kind(_idefics3, {"image_token_id": "<image>"}, ("mm.model.fc.weight", 0)),
    "pixtral": Kind(_pixtral, {"image_token_id": "[IMG]"}, ("mm.2.weight", 0)),
    "internvl": Kind(_internvl, {"image_token_id": "<IMG_CONTEXT>"}, ("mm.model.mlp.3.weight", 0)),
}


def kind_of(keys: Keys) -> tuple[str, Kind]:
    """(`clip.projector_type`, the kind). Raises ModelLoadError: no such kind is known, or the file has no tower."""
    named = keys.get("vision.projector_type") or keys.get("projector_type")
    if keys.file.architecture != "clip":
        raise keys.fault(
            f"it is a model of {keys.file.architecture!r}, and no mmproj file, whose architecture is 'clip'"
        )
    if keys.get("has_vision_encoder") is False or not any(name.startswith("v.") for name in keys.file.tensors):
        raise keys.fault("it has no tower for pictures")
    if named not in KINDS:
        raise ModelLoadError(
            f"{keys.file.path}: the projector {named!r:.80} is not supported in GGUF; supported are "
            f"{', '.join(KINDS)}; docs/vision.md has the folders whose pictures are seen"
        )
    return named, KINDS[named]
