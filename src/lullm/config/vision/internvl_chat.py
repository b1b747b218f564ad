"""InternVL as its authors publish it (`InternVLChatModel`): its config.json in the words of transformers' class."""

from pathlib import Path
from typing import Any

from lullm.config.field import boolean, optional_object, positive_int, shown
from lullm.config.json_file import optional_object as object_in
from lullm.config.vision.tower import MOST_EDGE
from lullm.errors import ModelLoadError

PUBLISHED = "InternVLChatModel"
_OWN, _WORD = "InternVLForConditionalGeneration", "<IMG_CONTEXT>"
_TOWER = "intern_vit_6b"
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def in_own_words(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same config.json, or, of `PUBLISHED`, one of transformers' class. Raises ModelLoadError."""
    names = data.get("architectures")
    if not isinstance(names, list) or names[:1] != [PUBLISHED]:
        return data
    text = optional_object(data, "llm_config")
    if not text:
        raise ModelLoadError(f"config.json: {PUBLISHED} without an llm_config, its text model")
    tower = {"model_type": _TOWER, **optional_object(data, "vision_config")}
    kept = {key: value for key, value in data.items() if key not in ("llm_config", "model_type")}
    token_id = _id_of(folder, _WORD)
    return kept | {
        "architectures": [_OWN],
        "text_config": text,
        "vision_config": tower,
        "vision_feature_layer": data.get("select_layer", -1),
        "is_published": True,
        **({} if token_id is None else {"image_token_id": token_id}),
    }


def processor_of(data: dict[str, Any], stated: dict[str, Any]) -> dict[str, Any]:
    """What its code does with a picture, as keys of GOT-OCR 2's image processor. Of its own file it reads two keys.

    `data`: of `in_own_words`. Raises ModelLoadError: something else is asked for.
    """
    if "image_token_id" not in data:
        raise ModelLoadError(f"its tokenizer has no token {_WORD}")
    for key, value in (("ps_version", "v2"), ("dynamic_image_size", True), ("use_thumbnail", True)):
        if data.get(key, value) != value:
            raise ModelLoadError(f"{key} is {shown(data[key])}, and only {shown(value)} is implemented")
    edge = positive_int(optional_object(data, "vision_config"), "image_size", 448, MOST_EDGE)
    edge = positive_int(data, "force_image_size", edge, MOST_EDGE)
    return {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": edge, "width": edge},
        "crop_to_patches": boolean(data, "dynamic_image_size", True),
        "min_patches": positive_int(data, "min_dynamic_patch", 1),
        "max_patches": positive_int(data, "max_dynamic_patch", 6),
        "image_mean": stated.get("image_mean", _MEAN),
        "image_std": stated.get("image_std", _STD),
    }


def _id_of(folder: Path, word: str) -> int | None:
    """The id of an added token, which config.json does not say; None: there is no such token. Raises ModelLoadError."""
    found: Any = object_in(folder / "added_tokens.json").get(word)
    declared = object_in(folder / "tokenizer_config.json").get("added_tokens_decoder")
    for token_id, token in declared.items() if isinstance(declared, dict) else ():
        if isinstance(token, dict) and token.get("content") == word and token_id.isascii() and token_id.isdigit():
            found = int(token_id)
    return found if type(found) is int else None
