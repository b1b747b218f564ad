"""Videos in transformers without torchvision: its processors' own steps, with frames resized by Pillow.

Its video processors need torchvision for one function, which resizes; everything else of them is called here.
"""

import copy
import importlib
import itertools
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from kit.vision.checkpoint import SPECIAL, Checkpoint, picture
from PIL import Image

_STAND_IN = "<fake_token_around_image>"
"""For a row of a video: transformers' processor takes no words of videos without videos."""
WORD = "<|video_pad|>"
_GLM_WORD = "<|video|>"


@dataclass
class Video:
    """Frames `[F, H, W, 3]`, what is known of them, and whether some are to be left out (`sampling`)."""

    frames: np.ndarray
    metadata: dict[str, Any] | None = None
    sampling: dict[str, Any] | None = None

    @property
    def given(self) -> Any:
        return self.frames if self.metadata is None else (self.frames, self.metadata)


def film(num_frames: int, width: int, height: int, seed: int = 0) -> np.ndarray:
    """A part of a picture that moves to the right, and noise: `[F, H, W, 3]`."""
    whole = np.asarray(picture(width + 4 * num_frames, height, seed))
    return np.stack([whole[:, 4 * number : 4 * number + width] for number in range(num_frames)])


def kind_of(checkpoint: Checkpoint) -> str:
    """The class of its video processor."""
    name = type(checkpoint.model).__name__
    if name.startswith("Glm"):
        return "Glm46V" if name.startswith("Glm46V") else "Glm4v"
    return "Qwen3VL" if name.startswith("Qwen3") else "Qwen2VL"


def is_newer(checkpoint: Checkpoint) -> bool:
    """Words tell the time of its frames, and their pixels count together."""
    return kind_of(checkpoint) != "Qwen2VL"


def spelled(text: str, checkpoint: Checkpoint) -> str:
    """With the model's words in place of `WORD`."""
    is_glm = kind_of(checkpoint).startswith("Glm")
    return text.replace(WORD, f"<|begin_of_video|>{_GLM_WORD}<|end_of_video|>") if is_glm else text


def processor_of(kind: str) -> tuple[Any, Any]:
    """(the module of the video processor, the functions of its class)."""
    from transformers.utils import is_torchvision_available

    is_torchvision_available()  # is remembered: what stands in for it cannot be found
    name = kind.lower().replace("vl", "_vl")
    names = ["torchvision", *(f"torchvision.transforms{last}" for last in ("", ".v2", ".v2.functional"))]
    stand_ins = {name: ModuleType(name) for name in names if name not in sys.modules}
    sys.modules.update(stand_ins)  # for the line that imports it
    try:
        module = importlib.import_module(f"transformers.models.{name}.video_processing_{name}")
    finally:
        for name in stand_ins:
            del sys.modules[name]
    found = vars(module)[f"{kind}VideoProcessor"]
    return module, SimpleNamespace(**type.__getattribute__(found, "__dict__"))


def read(checkpoint: Checkpoint, video: Video, size: dict[str, int]) -> tuple[np.ndarray, torch.Tensor, Any]:
    """(frames as they are read, resized `[F, H, W, 3]`, the patches, the metadata)."""
    from transformers.video_utils import VideoMetadata

    module, kind = processor_of(kind_of(checkpoint))
    processor, frames = checkpoint.processor.image_processor, video.frames
    known = {"total_num_frames": len(frames), "frames_indices": list(range(len(frames)))}
    metadata = VideoMetadata(**(known | copy.deepcopy(video.metadata or {})))  # which is written to there
    group = processor.temporal_patch_size
    if video.sampling is not None:
        named = {"min_frames": 4, "max_frames": 768, "num_frames": None, "fps": None, "temporal_patch_size": group}
        named |= {"max_duration": 300}
        indices = kind.sample_frames(SimpleNamespace(**named | video.sampling), metadata, **video.sampling)
        frames, metadata.frames_indices = frames[np.asarray(indices)], np.asarray(indices)
    edge, (height, width) = processor.patch_size * processor.merge_size, frames.shape[1:3]
    numbers = {"num_frames": len(frames), "temporal_factor": group} if is_newer(checkpoint) else {}
    bounds = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    height, width = module.smart_resize(height=height, width=width, factor=edge, **bounds, **numbers)
    resized = np.stack([np.asarray(Image.fromarray(frame).resize((width, height), 3)) for frame in frames])
    mean, std = (np.array(values, np.float32) for values in (processor.image_mean, processor.image_std))
    values = ((resized * np.float64(processor.rescale_factor)).astype(np.float32) - mean) / std
    videos = torch.from_numpy(values).permute(0, 3, 1, 2)[None]
    parts = processor.patch_size, processor.merge_size, group
    patches, *grid = kind.patchify(None, videos, *parts)
    return resized, patches[0], SimpleNamespace(grid=grid, metadata=metadata)


def inputs(
    checkpoint: Checkpoint, text: str, videos: list[Video], pictures: list[Any], size: dict[str, int]
) -> dict[str, Any]:
    """What transformers takes. `text` has <image> and <|video_pad|>, for Qwen3 with nothing around the latter; or GLM's
    words for a video (`spelled`), whose rows have a picture's token.
    """
    import transformers
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

    found = [read(checkpoint, video, size)[1:] for video in videos]
    processor, tokenizer = checkpoint.processor.image_processor, checkpoint.processor.tokenizer
    numbers = {"merge_size": processor.merge_size, "temporal_patch_size": processor.temporal_patch_size}
    name = kind_of(checkpoint)
    kind: Any = {"Qwen3VL": Qwen3VLProcessor, "Qwen2VL": Qwen2_5_VLProcessor}.get(name)
    kind, word = (kind, WORD) if kind is not None else (getattr(transformers, f"{name}Processor"), _GLM_WORD)
    this = SimpleNamespace(video_processor=SimpleNamespace(**numbers), video_token=_STAND_IN)
    this.vision_start_token, this.vision_end_token = "<|vision_start|>", "<|vision_end|>"
    this.image_token = _STAND_IN
    this.replace_frame_token_id = lambda *given, **more: kind.replace_frame_token_id(this, *given, **more)
    this._calculate_timestamps = lambda *given: Qwen3VLProcessor._calculate_timestamps(None, *given)
    for _, each in found:
        of_one = {"video_grid_thw": np.array([each.grid]), "video_metadata": [each.metadata]}
        text = text.replace(word, kind.replace_video_token(this, of_one, 0), 1)
    given = checkpoint.inputs(text, pictures)
    is_row = given["input_ids"] == SPECIAL.index(_STAND_IN)
    row_id = tokenizer.convert_tokens_to_ids(WORD) if word == WORD else 3
    given["mm_token_type_ids"] = (given["input_ids"] == 3).int() + 2 * is_row.int()
    given["input_ids"] = given["input_ids"].masked_fill(is_row, row_id)
    if found:
        given["pixel_values_videos"] = torch.cat([patches for patches, _ in found])
        given["video_grid_thw"] = torch.tensor([each.grid for _, each in found])
    seconds = [processor.temporal_patch_size / each.metadata.sampled_fps for _, each in found]
    given["position_ids"] = positions(checkpoint, given, seconds)
    return given


def positions(checkpoint: Checkpoint, given: dict[str, Any], seconds: list[float]) -> torch.Tensor:
    """`[3, 1, T]`: by transformers' own functions. But in Qwen2-VL the text behind a video goes on after the largest of
    its positions, as these models have learned; transformers 5.24 passes over those of its time.
    """
    model, ids = checkpoint.model.model, given["input_ids"]
    grids = {1: given.get("image_grid_thw"), 2: given.get("video_grid_thw")}
    if is_newer(checkpoint):
        found: torch.Tensor = model.get_rope_index(ids, given["mm_token_type_ids"], *grids.values())[0]
        return found
    waiting = {kind: iter(grid if grid is not None else []) for kind, grid in grids.items()}
    steps, parts, at = iter(torch.tensor(seconds)), [], 0
    factor = model.config.vision_config.spatial_merge_size
    per_second = getattr(model.config.vision_config, "tokens_per_second", None)
    for kind, run in itertools.groupby(given["mm_token_type_ids"][0].tolist()):
        left = len(list(run))
        while left:
            if not kind:
                part = torch.arange(left).expand(3, -1) + at
            else:
                grid = next(waiting[kind])
                step = next(steps) if kind == 2 else 1
                step = step * per_second if kind == 2 and per_second is not None else 1
                part = model.get_vision_position_ids(at, grid, 1, factor, step)
            parts.append(part)
            at, left = int(part.max()) + 1, left - part.shape[1]
    return torch.cat(parts, 1)[:, None]


def continued(
    checkpoint: Checkpoint, given: dict[str, Any], num_tokens: int
) -> tuple[list[int], list[int], list[float]]:
    """As `Checkpoint.continued`, for these inputs."""
    kinds = given["mm_token_type_ids"][0]
    given = {key: value for key, value in given.items() if key not in ("attention_mask", "mm_token_type_ids")}
    ids, places = given.pop("input_ids"), given.pop("position_ids")
    prompt, tokens, logprobs = ids[0].tolist(), [], []
    is_glm = kind_of(checkpoint).startswith("Glm")
    with torch.inference_mode():
        for _ in range(num_tokens):
            taken = (
                {"inputs_embeds": _embedded(checkpoint, ids, kinds, given)} if is_glm else given | {"input_ids": ids}
            )
            row = checkpoint.model(position_ids=places, **taken).logits[0, -1].log_softmax(-1)
            tokens.append(int(row.argmax()))
            logprobs.append(float(row[tokens[-1]]))
            ids = torch.cat([ids, torch.tensor([tokens[-1:]])], 1)
            places = torch.cat([places, places[:, :, -1:].max() + torch.ones(3, 1, 1, dtype=torch.long)], 2)
    return prompt, tokens, logprobs


def _embedded(checkpoint: Checkpoint, ids: torch.Tensor, kinds: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """The rows of GLM's decoder: transformers 5.24 takes no prompt with pictures and videos, as both have one token."""
    model = checkpoint.model.model
    rows: torch.Tensor = model.get_input_embeddings()(ids)
    for kind, names in enumerate((("pixel_values", "image"), ("pixel_values_videos", "video")), 1):
        if names[0] in given:
            grid = given[f"{names[1]}_grid_thw"]
            found = getattr(model, f"get_{names[1]}_features")(given[names[0]], grid, return_dict=True)
            rows[0, : len(kinds)][kinds == kind] = torch.cat(tuple(found.pooler_output))
    return rows
