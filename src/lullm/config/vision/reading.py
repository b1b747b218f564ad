"""Reads how a model sees pictures, or why it does not: then its text model is loaded alone."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lullm.config.family.text_model import TEXT_MODELS
from lullm.config.field import LARGEST_ID
from lullm.config.hearing.reading import HEARS
from lullm.config.json_file import PROCESSOR_FILES, processor_part
from lullm.config.vision.architecture.table import SEEING, Seeing
from lullm.config.vision.video_reading import video_keys
from lullm.config.vision.vision import VisionConfig
from lullm.errors import ModelLoadError
from lullm.log import get_logger

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What pictures need to know of the text model. `rotary_dim`: elements of a head that rotate."""

    architecture: str
    vocab_size: int
    hidden_size: int
    rotary_dim: int


def read_vision(data: dict[str, Any], folder: Path, text: TextFacts) -> tuple[VisionConfig | None, str]:
    """(how the model of a config.json sees pictures; or None, why it does not). The second is empty for models of text.

    `data`: of the whole model.
    """
    names = data.get("architectures")
    architecture = names[0] if isinstance(names, list) and names else None
    if architecture not in TEXT_MODELS:
        return None, ""
    if architecture in HEARS and architecture not in SEEING:
        return None, f"lullm sees no pictures with {architecture}"
    try:
        vision = vision_of(architecture, data, processor_part(folder, "image_processor"), text)
        return _with_videos(vision, SEEING[architecture], data, folder, text.vocab_size), ""
    except ModelLoadError as error:
        logger.info("%s: only the text model is loaded; what reads pictures is passed over: %s", architecture, error)
        return None, str(error)


def vision_of(
    architecture: str, data: dict[str, Any], processor: dict[str, Any] | None, text: TextFacts
) -> VisionConfig:
    """How a model sees pictures.

    Args:
        data: of the whole model. processor: the keys of its image processor; None: there are none.

    Raises ModelLoadError: it sees none here, and why.
    """
    seeing = SEEING.get(architecture)
    if seeing is None:
        raise ModelLoadError(
            "lullm sees pictures with LLaVA 1.5, Idefics3, SmolVLM, InternVL, Qwen2-VL, Qwen2.5-VL, Qwen3-VL, "
            "Qwen3.5, Qwen2.5-Omni, GLM-4.1V, GLM-4.5V, GLM-4.6V, GLM-OCR, Gemma 3, Gemma 4, Pixtral, Mistral 3, "
            "LightOnOCR, PaddleOCR-VL, Phi-4-multimodal, LLaVA-NeXT and LLaVA-OneVision so far, not with "
            f"{architecture}"
        )
    if text.architecture not in seeing.texts:
        raise ModelLoadError(f"its text model is {text.architecture}")
    processor = processor or seeing.unstated
    if processor is None:
        raise ModelLoadError(f"its folder has no {' and no '.join(PROCESSOR_FILES)}")
    vision = seeing.read(data, processor)
    check_tiles(vision)
    _check(vision, text.vocab_size, text.rotary_dim)
    return vision


def _with_videos(
    vision: VisionConfig, seeing: Seeing, data: dict[str, Any], folder: Path, vocab_size: int
) -> VisionConfig:
    architecture = data["architectures"][0]
    if seeing.read_video is None:
        reason = (
            "lullm sees videos with Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5, Qwen2.5-Omni and GLM-4.1V to GLM-4.6V "
            f"so far, not with {architecture}"
        )
        return replace(vision, no_video=reason)
    try:
        video = seeing.read_video(data, video_keys(folder), vision)
        _check_token(video.token_id, vocab_size)
        if video.token_id == vision.image_token_id:
            raise ModelLoadError("pictures and videos have the same token")
        return replace(vision, video=video)
    except ModelLoadError as error:
        logger.info("%s: it takes no videos: %s", architecture, error)
        return replace(vision, no_video=str(error))


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
    elif tower.positions == "axes" and picture.max_pixels // picture.edge // tower.patch_size > tower.num_positions:
        raise ModelLoadError(
            f"its tower has {tower.num_positions} positions on an edge, fewer than thin pictures have patches"
        )
    elif not picture.keeps_shape and picture.edge != tower.image_size:
        raise ModelLoadError(f"its tower reads {tower.image_size} pixels, its image processor has {picture.edge}")


def _check_token(token_id: int, vocab_size: int) -> None:
    if not 0 <= token_id < min(vocab_size, LARGEST_ID):
        raise ModelLoadError(f"its image token {token_id} is not in its vocabulary of {vocab_size}")


def _check(vision: VisionConfig, vocab_size: int, rotary_dim: int) -> None:
    for token_id in (vision.image_token_id, vision.placeholder_id, vision.begin_token_id, vision.end_token_id):
        if token_id is not None:
            _check_token(token_id, vocab_size)
    if vision.rows_of(vision.picture.edge, vision.picture.edge) < 1:
        raise ModelLoadError("a tile has no rows")
    if vision.picture.keeps_shape and vision.tower.positions in ("each", "nearest"):
        raise ModelLoadError("its image processor gives pictures of any shape, and its tower has positions for squares")
    if vision.axes and len(vision.axes) != rotary_dim // 2:
        raise ModelLoadError(
            f"mrope_section is for {len(vision.axes)} pairs, and {rotary_dim // 2} pairs of a head turn"
        )
