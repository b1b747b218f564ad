"""Pictures beside transformers: the same tokens, bits of pixels, rows of the tower, and continuations."""

import dataclasses
import random

import numpy as np
import pytest
import torch
from kit.vision.checkpoint import (
    CLIP,
    SIGLIP,
    picture,
    sizes,
    write_idefics3,
    write_internvl,
    write_llava,
    write_qwen_vl,
)

from lullm.arena.host import HostArena
from lullm.config.model import ModelConfig
from lullm.config.vision.vision import PictureForm
from lullm.engine.vision.pictures import PictureInput
from lullm.models.registry import build_model
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.text.tokenizer import Tokenizer
from lullm.vision.pixels import pixel_values
from lullm.vision.tiling import nearest_grid
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes


def _llava_processor(name, **settings):
    import transformers

    module = getattr(transformers.models, name.lower())
    return getattr(getattr(module, f"image_processing_pil_{name.lower()}"), f"{name}ImageProcessorPil")(**settings)


GRID = PictureForm(14, "grid", 14, False, False, 3, 1 / 255, (0.5,) * 3, (0.5,) * 3)
CROP = {"size": {"shortest_edge": 33}, "crop_size": {"height": 30, "width": 30}}
CASES = {
    "llava": lambda folder: write_llava(folder),
    "llava, all rows": lambda folder: write_llava(
        folder, vision_feature_select_strategy="full", vision_feature_layer=-1
    ),
    "llava, first layer": lambda folder: write_llava(folder, vision_feature_layer=1, multimodal_projector_bias=False),
    "llava, larger crop": lambda folder: write_llava(folder, CLIP, _llava_processor("CLIP", **CROP)),
    "llava, squares": lambda folder: write_llava(folder, CLIP, _llava_processor("Llava", do_pad=True, **CROP)),
    "llava, siglip": lambda folder: write_llava(
        folder,
        SIGLIP,
        _llava_processor("Siglip", size={"height": 30, "width": 30}),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    ),
    "idefics3": lambda folder: write_idefics3(folder),
    "idefics3, whole": lambda folder: write_idefics3(folder, do_image_splitting=False),
    "smolvlm": lambda folder: write_idefics3(folder, is_smol=True),
    "internvl": lambda folder: write_internvl(folder),
    "internvl, rms": lambda folder: write_internvl(
        folder,
        {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False, "use_mean_pooling": False},
        "qwen3",
        {"max_patches": 12, "min_patches": 3},
        ("<|see|>", "<|seen|>"),
    ),
    "internvl, no positions": lambda folder: write_internvl(
        folder, {"use_absolute_position_embeddings": False, "use_mask_token": True}, "llama", {"max_patches": 1}
    ),
    "internvl, first layer": lambda folder: write_internvl(
        folder, {"use_mean_pooling": False}, vision_feature_layer=1, projector_hidden_act="relu"
    ),
    "qwen2": lambda folder: write_qwen_vl(folder, "Qwen2VL"),
    "qwen2, groups of 9": lambda folder: write_qwen_vl(
        folder,
        "Qwen2VL",
        {"patch_size": 3, "spatial_merge_size": 3, "temporal_patch_size": 1, "hidden_act": "gelu", "mlp_ratio": 3},
        {"merge_size": 3, "temporal_patch_size": 1},
        mrope_section=[4, 4],
    ),
    "qwen2.5": lambda folder: write_qwen_vl(folder),
    "qwen2.5, small windows": lambda folder: write_qwen_vl(
        folder,
        tower={"window_size": 8, "fullatt_block_indexes": [0, 2]},
        settings={"min_pixels": 64, "max_pixels": 4000},
    ),
    "qwen2.5, large windows": lambda folder: write_qwen_vl(
        folder, tower={"window_size": 112, "fullatt_block_indexes": []}
    ),
    "qwen3": lambda folder: write_qwen_vl(folder, "Qwen3VL"),
    "qwen3, deeper": lambda folder: write_qwen_vl(
        folder,
        "Qwen3VL",
        {"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 4},
        {"size": {"shortest_edge": 64, "longest_edge": 64 * 90}},
        mrope_section=[3, 3, 2],
    ),
    "qwen3, experts": lambda folder: write_qwen_vl(folder, "Qwen3VLMoe"),
    "qwen3, not deep": lambda folder: write_qwen_vl(
        folder, "Qwen3VL", {"deepstack_visual_indexes": [], "num_position_embeddings": 1}
    ),
}


def as_read(pixels, processor):
    """`[3, H, W]` as the processor gives them: tiles, or for Qwen's patches in groups, each picture repeated."""
    if not hasattr(processor, "merge_size"):
        return pixels[None]
    size, group, frames = processor.patch_size, processor.merge_size, processor.temporal_patch_size
    lines, columns = pixels.shape[1] // size // group, pixels.shape[2] // size // group
    cut = pixels.reshape(3, lines, group, size, columns, group, size).transpose(1, 4, 2, 5, 0, 3, 6)
    return np.repeat(cut[:, :, :, :, :, None], frames, 5).reshape(lines * columns * group**2, -1)


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request, tmp_path_factory):
    return CASES[request.param](tmp_path_factory.mktemp("model"))


class Own:
    """lullm's half: without an engine."""

    def __init__(self, folder):
        from lullm.config.engine import EngineConfig

        self.config = ModelConfig.from_folder(folder)
        resolved = EngineConfig(model=str(folder)).resolve(self.config)
        self.tokenizer = Tokenizer.from_folder(folder)
        self.pictures = PictureInput(resolved, self.config, self.tokenizer)

    def read(self, text, pictures):
        """(the ids, the places of tiles)."""
        prompt, tiled = self.pictures.take({"prompt": text, "multi_modal_data": {"image": pictures}}, may_block=True)
        return self.pictures.place(self.tokenizer.encode(prompt["prompt"]), tiled)


def test_tokens_and_pixels(checkpoint):
    own = Own(checkpoint.folder)
    for number, size in enumerate([(30, 30), (25, 25), (75, 75), (7, 150), (149, 9), *sizes(3, 12)]):
        given = [picture(*size, seed=number), picture(40, 31)][: 1 + number % 2]
        text = "hello <image> the quick<image>\nfox" if len(given) == 2 else "hello <image>the quick\nfox"
        text = text.replace("<image>", checkpoint.word)
        expected = checkpoint.inputs(text, given)
        ids, places = own.read(text, given)
        assert ids == expected["input_ids"][0].tolist()
        pixels = expected["pixel_values"].numpy()
        pixels = pixels.reshape(-1, *pixels.shape[-3:]) if pixels.ndim > 2 else pixels
        form, processor = own.config.vision.picture, checkpoint.processor.image_processor
        values = np.concatenate([as_read(pixel_values(place.tile, form), processor) for place in places])
        assert np.array_equal(values, pixels), size
        shown = [position for place in places for position in range(place.start, place.end)]
        assert [position for position, token_id in enumerate(ids) if token_id == 3] == shown


def test_grids():
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    rng = random.Random(0)
    for number in range(2000):
        most = rng.choice([1, 2, 5, 6, 12, 40])
        form = dataclasses.replace(GRID, edge=rng.choice([14, 448]), min_tiles=rng.randint(1, most), max_tiles=most)
        width, height = (rng.randint(1, 3000) if number % 2 else form.edge * rng.randint(1, 8) for _ in range(2))
        edges = (form.edge, form.edge)
        expected = get_optimal_tiled_canvas((height, width), edges, form.min_tiles, most)
        assert nearest_grid(width, height, form) == expected, (width, height, form)


def test_the_rows_of_the_tower(checkpoint):
    own = Own(checkpoint.folder)
    model = build_model(own.config, torch.float32, 256)
    arena = HostArena("weights", weights_bytes(model))
    materialize(model, arena)
    load_weights(model, checkpoint.folder, TORCH_CPU_OPS)
    given = [picture(61, 40), picture(20, 80, seed=1)]
    inputs = checkpoint.inputs("<image> and <image>", given)
    with torch.inference_mode():
        names = ("pixel_values", "pixel_attention_mask", "image_grid_thw")
        known = {key: inputs[key] for key in names if key in inputs}
        output = checkpoint.model.model.get_image_features(**known, return_dict=True)
        expected, deep = output.pooler_output, getattr(output, "deepstack_features", [])
        expected = expected.flatten(0, 1) if isinstance(expected, torch.Tensor) else torch.cat(expected)
        expected = torch.stack([expected, *map(torch.cat, deep)])
        _, places = own.read("<image> and <image>", given)
        rows = torch.cat([model.vision(place.tile, torch.device("cpu")) for place in places], 1)
    assert expected.std() > 0.1
    torch.testing.assert_close(rows, expected, atol=2e-5, rtol=1e-4)
    arena.close()
