"""Reads how a model sees pictures, or why it does not: then its text model is loaded alone."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

from lullm.config.family.text_model import TEXT_MODELS
from lullm.config.field import (
    LARGEST_ID,
    MOST_HEAD_DIM,
    boolean,
    integer,
    optional_object,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.vision.picture import FILES, KINDS, PATCHES, grids_of, processor_data, read_picture
from lullm.config.vision.tower import MOST_EDGE, read_tower
from lullm.config.vision.vision import (
    Connector,
    MergeConnector,
    MLPConnector,
    PoolConnector,
    ShuffleConnector,
    VisionActivation,
    VisionConfig,
)
from lullm.errors import ModelLoadError
from lullm.log import get_logger

logger = get_logger(__name__)

_LLAVA = "LlavaForConditionalGeneration"
_IDEFICS3 = ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration")
_INTERNVL = "InternVLForConditionalGeneration"
_QWEN2_VL, _QWEN2_5_VL = "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"
_QWEN3_VL, _QWEN3_VL_MOE = "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"
_GEMMA3 = "Gemma3ForConditionalGeneration"
_NEXT, _ONEVISION = "LlavaNextForConditionalGeneration", "LlavaOnevisionForConditionalGeneration"
_MISTRAL3 = "Mistral3ForConditionalGeneration"
_TEXTS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""The text models below them: others may scale rows, or let them see each other both ways."""
_OTHER_TEXTS = {
    _QWEN3_VL_MOE: ("Qwen3MoeForCausalLM",),
    _INTERNVL: (*_TEXTS, "Qwen3MoeForCausalLM"),
    _GEMMA3: ("Gemma3ForCausalLM",),
    _MISTRAL3: (*_TEXTS, "Ministral3ForCausalLM", "Mistral4ForCausalLM"),
}
_UNSTATED = {_MISTRAL3: {"image_processor_type": "PixtralImageProcessor"}}
"""Image processors of folders without a file of one: Mistral Small 3.2's."""
_TOWERS = ("clip_vision_model", "siglip_vision_model")
_IDEFICS3_TOWERS = ("idefics3_vision", "idefics3", "smolvlm_vision")
_INTERNVL_TOWERS = ("internvl_vision",)
_QWEN_TOWERS = {
    _QWEN2_VL: ("qwen2_vl_vision", "qwen2_vl"),
    _QWEN2_5_VL: ("qwen2_5_vl_vision", "qwen2_5_vl"),
    _QWEN3_VL: ("qwen3_vl_vision", "qwen3_vl"),
    _QWEN3_VL_MOE: ("qwen3_vl_moe_vision", "qwen3_vl_moe"),
}
_SECTIONS, _QWEN3_SECTIONS = [16, 24, 24], [24, 20, 20]
"""Of a file without `mrope_section`."""
_MOST_SCALE = 64


def read_vision(
    data: dict[str, Any], folder: Path, text_architecture: str, vocab_size: int, head_dim: int
) -> tuple[VisionConfig | None, str]:
    """(how the model of a config.json sees pictures; or None, why it does not). The second is empty for models of text.

    Args:
        data: of the whole model. text_architecture, vocab_size, head_dim: of the text model.
    """
    names = data.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else None
    if architecture not in TEXT_MODELS:
        return None, ""
    try:
        if architecture not in _READ:
            raise ModelLoadError(
                "lullm sees pictures with LLaVA 1.5, Idefics3, SmolVLM, InternVL, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, "
                f"Gemma 3, Pixtral, Mistral 3, LLaVA-NeXT and LLaVA-OneVision so far, not with {architecture}"
            )
        if text_architecture not in _OTHER_TEXTS.get(architecture, _TEXTS):
            raise ModelLoadError(f"its text model is {text_architecture}")
        processor = processor_data(folder) or _UNSTATED.get(architecture)
        if processor is None:
            raise ModelLoadError(f"its folder has no {' and no '.join(FILES)}")
        vision = _READ[architecture](data, processor)
        check_tiles(vision)
        _check(vision, vocab_size, head_dim)
        return vision, ""
    except ModelLoadError as error:
        logger.info("%s: only the text model is loaded; what reads pictures is passed over: %s", architecture, error)
        return None, str(error)


def _read_llava(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    layer, strategy = _feature_layer(data, -2), data.get("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise ModelLoadError(f"vision_feature_select_strategy is {shown(strategy)}")
    stated = optional_object(data, "vision_config") or None
    connector = MLPConnector(_activation(data), boolean(data, "multimodal_projector_bias", True))
    if stated is not None and stated.get("model_type") == "pixtral":
        if strategy != "full":  # it has no row of the whole picture, which could be left out
            raise ModelLoadError(f"vision_feature_select_strategy is {shown(strategy)}, and its tower is Pixtral's")
        return _read_pixtral(data, processor, connector, layer)
    tower = read_tower(stated, _TOWERS, layer, strategy == "default")
    image_token_id = integer(data, "image_token_id", integer(data, "image_token_index", 32000))
    return VisionConfig(tower, connector, read_picture(processor), image_token_id, "none")


def _read_idefics3(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    tower = read_tower(optional_object(data, "vision_config"), _IDEFICS3_TOWERS, None, drops_first=False)
    connector = ShuffleConnector(positive_int(data, "scale_factor", 2, most=_MOST_SCALE))
    vision = VisionConfig(tower, connector, read_picture(processor), integer(data, "image_token_id", 128257), "places")
    if vision.picture.fit != "split":
        raise ModelLoadError("its image processor is not Idefics3's")
    return vision


def _read_internvl(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    layer, strategy = _feature_layer(data, -1), data.get("vision_feature_select_strategy", "default")
    if strategy != "default":  # the row of the whole picture has no neighbours
        raise ModelLoadError(f"vision_feature_select_strategy is {shown(strategy)}")
    # The norm behind the last layer is used if that layer is called -1, and by no other number (as in transformers).
    stated = optional_object(data, "vision_config") or None
    tower = read_tower(stated, _INTERNVL_TOWERS, None if layer == -1 else layer, drops_first=True)
    ratio = positive_float(data, "downsample_ratio", 0.5)
    factor = round(1 / ratio) if ratio > 1 / _MOST_SCALE else 0
    if not factor or factor * ratio != 1.0 or tower.num_sides % factor:
        raise ModelLoadError(
            f"downsample_ratio {shown(ratio)} does not make groups of the {tower.num_sides} x {tower.num_sides} patches"
        )
    connector = MLPConnector(_activation(data), has_bias=True, has_norm=True, scale_factor=factor)
    # Its processor always splits, whatever its image processor's file says.
    picture = read_picture(processor | {"crop_to_patches": True})
    if picture.fit != "grid":
        raise ModelLoadError("its image processor is not GOT-OCR 2's")
    return VisionConfig(tower, connector, picture, integer(data, "image_token_id", 151667), "ends")


def _read_qwen_vl(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    architecture = data["architectures"][0]
    stated, text = optional_object(data, "vision_config"), optional_object(data, "text_config") or data
    tower = read_tower(stated, _QWEN_TOWERS[architecture], None, drops_first=False)
    factor = positive_int(stated, "spatial_merge_size", 2, most=_MOST_SCALE)
    size_name = "hidden_size" if architecture == _QWEN2_VL else "out_hidden_size"
    if (out_size := positive_int(stated, size_name, 3584)) != text.get("hidden_size"):
        raise ModelLoadError(f"its tower's rows have {out_size} elements, the text's {shown(text.get('hidden_size'))}")
    picture = read_picture(processor)
    if picture.fit != "area":
        raise ModelLoadError("its image processor is not Qwen2-VL's")
    numbers = {"patch_size": tower.patch_size, "merge_size": factor, "temporal_patch_size": tower.num_frames}
    for name, number in numbers.items():
        other = PATCHES[name] if processor.get(name) is None else processor[name]
        if other != number:
            raise ModelLoadError(f"{name} {shown(other)} of its image processor is not its tower's {number}")
    connector = MLPConnector("gelu", has_bias=True, scale_factor=factor, keeps_width=True)
    axes = _axes(text, takes_turns=architecture in (_QWEN3_VL, _QWEN3_VL_MOE))
    return VisionConfig(tower, connector, picture, integer(data, "image_token_id", 151655), "none", axes)


def _axes(text: dict[str, Any], takes_turns: bool) -> tuple[int, ...]:
    """See `VisionConfig`: consecutive pairs of a head, a section for each axis. Or a pair for each axis in turn, until
    one has had as many as its section; then the first takes its turns, too.
    """
    rope = optional_object(text, "rope_scaling") or optional_object(text, "rope_parameters")
    default = _QWEN3_SECTIONS if takes_turns else _SECTIONS
    sections = default if rope.get("mrope_section") is None else rope["mrope_section"]
    is_list = isinstance(sections, list) and (len(sections) == 3 if takes_turns else 1 <= len(sections) <= _MOST_SCALE)
    if not is_list or not all(type(one) is int and 0 <= one <= MOST_HEAD_DIM for one in sections):
        raise ModelLoadError(f"mrope_section {shown(sections)} is not a list of numbers of pairs")
    if boolean(rope, "mrope_interleaved", takes_turns) != takes_turns:
        raise ModelLoadError(f"mrope_interleaved {shown(rope['mrope_interleaved'])} is not implemented for it")
    if takes_turns:
        turns = ((number % 3, number // 3) for number in range(sum(sections)))
        return tuple(axis if turn < sections[axis] else 0 for axis, turn in turns)
    return tuple(number % 3 for number, size in enumerate(sections) for _ in range(size))


def _read_gemma3(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    tower = read_tower(optional_object(data, "vision_config"), ("siglip_vision_model",), None, drops_first=False)
    num_rows = positive_int(data, "mm_tokens_per_image", 256)
    num_sides = math.isqrt(num_rows)
    if num_sides**2 != num_rows or tower.num_sides % num_sides:
        raise ModelLoadError(
            f"mm_tokens_per_image {num_rows} are no groups of the {tower.num_sides} x {tower.num_sides} patches"
        )
    # Its processor passes the file's values of these keys over.
    picture = read_picture({key: value for key, value in processor.items() if "pan_and_scan" not in key})
    if picture.fit != "scan":
        raise ModelLoadError("its image processor is not Gemma 3's")
    ids = (("image_token", 262144), ("boi_token", 255999), ("eoi_token", 256000))
    image_id, place_id, end_id = (integer(data, f"{name}_id", integer(data, f"{name}_index", own)) for name, own in ids)
    connector = PoolConnector(tower.num_sides // num_sides, tower.layer_norm_eps)
    return VisionConfig(
        tower,
        connector,
        picture,
        image_id,
        "words",
        place_token_id=place_id,
        end_token_id=end_id,
        is_mutual=True,
    )


def _read_llava_next(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    is_newer = data["architectures"][0] == _ONEVISION
    stated = optional_object(data, "vision_config") or None
    strategy = data.get("vision_feature_select_strategy", "full" if is_newer else "default")
    towers = _TOWERS[1:] if is_newer else _TOWERS
    layer = _feature_layer(data, -1 if is_newer else -2)
    tower = read_tower(stated, towers, layer, strategy == "default")
    if strategy not in ("default", "full") or tower.drops_first != tower.has_class_row:
        raise ModelLoadError(
            f"vision_feature_select_strategy is {shown(strategy)}, and a square has rows beside a grid's"
        )
    picture = read_picture(processor)
    kind = "LlavaOnevision" if is_newer else "LlavaNext"
    if picture.fit != "anyres":
        raise ModelLoadError("its image processor is not LLaVA-NeXT's")
    pinpoints = data.get("image_grid_pinpoints") or KINDS[kind]["image_grid_pinpoints"]
    if grids_of(pinpoints, picture.edge) != picture.grids:
        raise ModelLoadError("image_grid_pinpoints of its image processor are not those of config.json")
    aspect = data.get("vision_aspect_ratio", "anyres_max_9")
    match = re.fullmatch(r"anyres_max_([1-9]\d{0,2})", aspect) if isinstance(aspect, str) else None
    if is_newer and match is None:
        raise ModelLoadError(f"vision_aspect_ratio is {shown(aspect)}")
    return VisionConfig(
        tower,
        MLPConnector(_activation(data), boolean(data, "multimodal_projector_bias", True)),
        picture,
        integer(data, "image_token_id", integer(data, "image_token_index", 151646 if is_newer else 32000)),
        "none",
        has_newline=True,
        max_squares=int(match[1]) if is_newer and match else 0,
    )


def _read_mistral3(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    text = optional_object(data, "text_config")
    if processor is _UNSTATED[_MISTRAL3]:
        edge = positive_int(optional_object(data, "vision_config"), "image_size", 1540, most=MOST_EDGE)
        processor = processor | {"size": {"longest_edge": edge}}
    connector = MergeConnector(
        _activation(data),
        boolean(data, "multimodal_projector_bias", False),
        positive_int(data, "spatial_merge_size", 2, most=_MOST_SCALE),
        positive_float(text, "rms_norm_eps", 1e-5 if text.get("model_type") == "ministral3" else 1e-6),
    )
    return _read_pixtral(data, processor, connector, _feature_layer(data, -1))


def _read_pixtral(
    data: dict[str, Any], processor: dict[str, Any], connector: Connector, feature_layer: int
) -> VisionConfig:
    tower = read_tower(optional_object(data, "vision_config"), ("pixtral",), feature_layer, drops_first=False)
    # Its processor makes edges multiples of what a row sees, whatever its image processor's file says.
    picture = read_picture(processor | {"patch_size": tower.patch_size * connector.scale_factor})
    if picture.fit != "within":
        raise ModelLoadError("its image processor is not Pixtral's")
    image_id = integer(data, "image_token_id", integer(data, "image_token_index", 10))
    return VisionConfig(tower, connector, picture, image_id, "lines")


_READ: Mapping[str, Callable[[dict[str, Any], dict[str, Any]], VisionConfig]] = {
    _LLAVA: _read_llava,
    **dict.fromkeys(_IDEFICS3, _read_idefics3),
    _INTERNVL: _read_internvl,
    **dict.fromkeys(_QWEN_TOWERS, _read_qwen_vl),
    _GEMMA3: _read_gemma3,
    _MISTRAL3: _read_mistral3,
    **dict.fromkeys((_NEXT, _ONEVISION), _read_llava_next),
}
"""The architectures whose pictures are read."""


def _feature_layer(data: dict[str, Any], default: int) -> int:
    layer = data.get("vision_feature_layer", default)
    if not isinstance(layer, int) or isinstance(layer, bool):
        raise ModelLoadError(f"vision_feature_layer {shown(layer)} is not one layer")
    return layer


def _activation(data: dict[str, Any]) -> VisionActivation:
    activation = data.get("projector_hidden_act", "gelu")
    if activation not in get_args(VisionActivation):
        raise ModelLoadError(f"projector_hidden_act is {shown(activation)}")
    return cast(VisionActivation, activation)


def check_tiles(vision: VisionConfig) -> None:
    """Raises ModelLoadError: the tower cannot read the tiles of the image processor."""
    picture, tower, factor = vision.picture, vision.tower, vision.connector.scale_factor
    num_sides = picture.edge // tower.patch_size
    if tower.positions == "nearest":
        if num_sides > tower.num_sides or num_sides % factor or not num_sides:
            raise ModelLoadError(
                f"a tile has {num_sides} x {num_sides} patches: more than the {tower.num_sides} x {tower.num_sides} of "
                f"the tower, or no multiple of scale_factor {factor}"
            )
    elif not picture.keeps_shape and picture.edge != tower.image_size:
        raise ModelLoadError(f"its tower reads {tower.image_size} pixels, its image processor has {picture.edge}")


def _check(vision: VisionConfig, vocab_size: int, head_dim: int) -> None:
    for token_id in (vision.image_token_id, vision.placeholder_id, vision.end_token_id):
        if token_id is not None and not 0 <= token_id < min(vocab_size, LARGEST_ID):
            raise ModelLoadError(f"its image token {token_id} is not in its vocabulary of {vocab_size}")
    if vision.rows_of(vision.picture.edge, vision.picture.edge) < 1:
        raise ModelLoadError("a tile has no rows")
    if vision.picture.keeps_shape and vision.tower.positions in ("each", "nearest"):
        raise ModelLoadError("its image processor gives pictures of any shape, and its tower has positions for squares")
    if vision.axes and len(vision.axes) != head_dim // 2:
        raise ModelLoadError(f"mrope_section is for {len(vision.axes)} pairs, and a head has {head_dim // 2}")
