"""Pictures beside transformers: the same tokens, bits of pixels, rows of the tower, and continuations."""

import dataclasses
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from kit.vision.checkpoint import (
    CLIP,
    SIGLIP,
    picture,
    sizes,
    write_gemma3,
    write_gemma4,
    write_glm4v,
    write_idefics3,
    write_internvl,
    write_internvl_chat,
    write_lighton_ocr,
    write_llava,
    write_llava_next,
    write_paddle,
    write_pixtral,
    write_qwen_vl,
)
from kit.vision.own import Own

from lullm.arena.host import HostArena
from lullm.config.vision.form import PictureForm
from lullm.errors import ConfigError, InvalidRequestError
from lullm.models.registry import build_model
from lullm.ops.selection import NATIVE_CPU_OPS, TORCH_CPU_OPS
from lullm.types.vision.grid import SquareGrid
from lullm.types.vision.tile import TileRows
from lullm.vision.tiling import fitting_grid, nearest_grid
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes
from lullm.weights.packing import pack_weights


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
    "internvl, experts": lambda folder: write_internvl(folder, text="qwen3_moe"),
    "internvl, published": lambda folder: write_internvl_chat(folder),
    "internvl, published, rms": lambda folder: write_internvl_chat(
        folder, {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False}, "qwen3"
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
    "qwen3.5": lambda folder: write_qwen_vl(folder, "Qwen3_5"),
    "qwen3.5, experts, whole heads turn": lambda folder: write_qwen_vl(
        folder, "Qwen3_5Moe", {"hidden_act": "silu"}, mrope_section=[3, 3, 2], partial_rotary_factor=1.0
    ),
    "glm4v": lambda folder: write_glm4v(folder),
    "glm4v, groups of 9": lambda folder: write_glm4v(
        folder,
        "Glm46V",
        {
            "patch_size": 3,
            "spatial_merge_size": 3,
            "temporal_patch_size": 1,
            "hidden_act": "gelu",
            "attention_bias": True,
            "image_size": 4,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0},
        },
        {"merge_size": 3, "temporal_patch_size": 1, "size": {"shortest_edge": 81, "longest_edge": 81 * 50}},
        mrope_section=[1, 1, 2],
    ),
    "glm4.5v": lambda folder: write_glm4v(folder, "Glm4vMoe", {"image_size": 36}),
    "glm-ocr": lambda folder: write_glm4v(folder, "GlmOcr"),
    "gemma3": lambda folder: write_gemma3(folder),
    "gemma3, another tower": lambda folder: write_gemma3(
        folder, settings={"do_pan_and_scan": True}, hidden_act="gelu", patch_size=8, layer_norm_eps=1e-3
    ),
    "gemma4": lambda folder: write_gemma4(folder),
    "gemma4, clipped": lambda folder: write_gemma4(
        folder,
        settings={"resample": 2, "pooling_kernel_size": 2},
        use_clipped_linears=True,
        standardize=True,
        pooling_kernel_size=2,
        rope_parameters={"rope_type": "axial", "rope_theta": 30.0},
        rms_norm_eps=1e-3,
    ),
    "gemma4, many rows": lambda folder: write_gemma4(
        folder, settings={"max_soft_tokens": 140}, position_embedding_size=840
    ),
    "pixtral": lambda folder: write_pixtral(folder),
    "pixtral, another layer": lambda folder: write_pixtral(
        folder,
        settings={"resample": 2, "size": {"longest_edge": 23}},
        vision_feature_layer=-2,
        multimodal_projector_bias=False,
        tower={"hidden_act": "silu", "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0}},
    ),
    "mistral3": lambda folder: write_pixtral(folder, 2),
    "mistral3, groups of 9": lambda folder: write_pixtral(
        folder, 3, {"model_type": "ministral3"}, multimodal_projector_bias=True, projector_hidden_act="relu"
    ),
    "paddle": lambda folder: write_paddle(folder),
    "paddle, groups of 9": lambda folder: write_paddle(
        folder,
        {"patch_size": 3, "spatial_merge_size": 3, "image_size": 12, "hidden_act": "gelu"},
        {"merge_size": 3, "size": {"shortest_edge": 81, "longest_edge": 81 * 60}},
        tie_word_embeddings=False,
    ),
    "lighton": lambda folder: write_lighton_ocr(folder),
    "lighton, groups of 9": lambda folder: write_lighton_ocr(folder, 3, tie_word_embeddings=False),
    "next": lambda folder: write_llava_next(folder),
    "next, siglip": lambda folder: write_llava_next(
        folder,
        {"resample": 2},
        tower=SIGLIP | {"image_size": 14, "patch_size": 4},
        vision_feature_select_strategy="full",
        vision_feature_layer=1,
        text="llama",
    ),
    "onevision": lambda folder: write_llava_next(folder, is_onevision=True),
    "onevision, fewer rows": lambda folder: write_llava_next(
        folder, is_onevision=True, vision_aspect_ratio="anyres_max_2", multimodal_projector_bias=False
    ),
    "qwen3, not deep": lambda folder: write_qwen_vl(
        folder, "Qwen3VL", {"deepstack_visual_indexes": [], "num_position_embeddings": 1}
    ),
}


def pixels_of(inputs):
    pixels = inputs["pixel_values"].numpy()
    if "image_position_ids" in inputs:  # from 0 to 1, and the tower makes them -1 to 1; padded to as many for each
        counts = (inputs["image_position_ids"] >= 0).all(-1).sum(-1).tolist()
        return [2 * (one[:count] - np.float32(0.5)) for one, count in zip(pixels, counts, strict=True)]
    if "image_sizes" in inputs and pixels.ndim == 5:  # squares, and others that make them as many for each picture
        return list(pixels)
    if "image_sizes" in inputs:  # padded below and at the right, so that all are as large
        return [
            one[None, :, :height, :width] for one, (height, width) in zip(pixels, inputs["image_sizes"], strict=True)
        ]
    return pixels.reshape(-1, *pixels.shape[-3:]) if pixels.ndim > 2 else pixels


def same(numbers, inputs):
    """The numbers of all tiles are those of transformers."""
    expected = pixels_of(inputs)
    if isinstance(expected, list):
        expected = [theirs[: len(own)] for own, theirs in zip(numbers, expected, strict=True)]
        return all(map(np.array_equal, numbers, expected))
    return np.array_equal(np.concatenate(numbers), expected)


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request, tmp_path_factory):
    return CASES[request.param](tmp_path_factory.mktemp("model"))


def positions_of(place):
    """Those in a prompt of a tile's rows."""
    parts = TileRows(place.tile.digest, place.start, 0, place.num_rows, place.geometry).of_tower()
    return [position for row, _, num_rows in parts for position in range(row, row + num_rows)]


def test_tokens_and_pixels(checkpoint):
    own = Own(checkpoint.folder)
    for number, size in enumerate([(30, 30), (25, 25), (75, 75), (7, 150), (149, 9), *sizes(3, 12)]):
        given = [picture(*size, seed=number), picture(40, 31)][: 1 + number % 2]
        text = "hello <image> the quick<image>\nfox" if len(given) == 2 else "hello <image>the quick\nfox"
        text = text.replace("<image>", checkpoint.word)
        expected = checkpoint.inputs(text, given)
        ids, places = own.read(text, given)
        assert ids == expected["input_ids"][0].tolist()
        assert same(own.numbers(places, checkpoint.processor.image_processor), expected), size
        shown = [position for place in places for position in positions_of(place)]
        assert [position for position, token_id in enumerate(ids) if token_id == 3] == shown


SCANS = {
    "do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 3,
    "pan_and_scan_min_ratio_to_activate": 1.4,
}  # fmt: skip
FEWER = {"min_pixels": 128, "max_pixels": 64 * 9}
RAISED = {
    "qwen2.5": {"size": {"shortest_edge": 64 * 20, "longest_edge": 64 * 39}},
    "internvl": {"max_dynamic_patch": 4, "min_dynamic_patch": 2},
    "qwen2.5, small windows": FEWER,
    "gemma3": SCANS,
}
"""Their lower bounds are above those of the file, so they are for the engine only."""
VOLUME = {"shortest_edge": 8 * 64, "longest_edge": 64 * 18}
SETTINGS = [
    ("qwen2.5", FEWER, FEWER),
    ("qwen2.5", RAISED["qwen2.5"], None),
    ("qwen2.5, small windows", FEWER, FEWER),
    ("qwen2.5, small windows", {"size": {"shortest_edge": 32, "longest_edge": 64 * 9}}, None),
    ("qwen3", {"max_pixels": 64 * 7}, {"size": {"shortest_edge": 64 * 4, "longest_edge": 64 * 7}}),
    (
        "qwen3, deeper",
        {"size": {"longest_edge": 64 * 7}, "resample": 2},
        {"size": {"shortest_edge": 64, "longest_edge": 64 * 7}, "resample": 2},
    ),
    ("internvl", {"max_patches": 3}, None),
    ("internvl", RAISED["internvl"], {"max_patches": 4, "min_patches": 2}),
    ("internvl", {"max_dynamic_patch": 2}, {"max_patches": 2}),
    ("internvl", {"crop_to_patches": False}, None),
    ("idefics3", {"do_image_splitting": False, "max_image_size": None}, {"do_image_splitting": False}),
    ("idefics3", {"size": {"longest_edge": 50}}, None),
    ("smolvlm", {"size": {"longest_edge": 30}, "resample": 3}, None),
    ("llava, squares", {"do_pad": False, "resample": 0}, None),
    ("llava, siglip", {"resample": 2}, None),
    ("gemma3", SCANS, None),
    ("glm4v", {"size": {"longest_edge": 64 * 18}, "resample": 2}, {"size": VOLUME, "resample": 2}),
    ("gemma4, many rows", {"max_soft_tokens": 70, "resample": 2}, None),
]


@pytest.mark.filterwarnings("ignore:Passing `min_pixels`")
@pytest.mark.parametrize(("name", "settings", "theirs"), SETTINGS, ids=str)
def test_other_settings(tmp_path, name, settings, theirs):
    """Of the engine, or of a request: as the image processor with the same arguments (`theirs`)."""
    checkpoint = CASES[name](tmp_path)
    own, plain, num_different = Own(tmp_path, settings), Own(tmp_path), 0
    for number, size in enumerate([(30, 30), (75, 70), (7, 150), *sizes(5, 12)]):
        given, text = [picture(*size, seed=number)], f"hello {checkpoint.word} fox"
        expected = checkpoint.inputs(text, given, **(theirs or settings))
        ids, places = own.read(text, given)
        assert ids == expected["input_ids"][0].tolist()
        assert same(own.numbers(places, checkpoint.processor.image_processor), expected), size
        if settings != RAISED.get(name):
            assert plain.read(text, given, settings) == (ids, places)
        num_different += plain.read(text, given)[1] != places
    assert num_different


def test_other_numbers_of_pixels(tmp_path):
    """Of the engine only: a tile holds bytes."""
    checkpoint = CASES["qwen3"](tmp_path)
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 1.0], "rescale_factor": 1 / 127}
    own, given = Own(tmp_path, settings), [picture(30, 41)]
    _, places = own.read(checkpoint.word, given)
    values = own.numbers(places, checkpoint.processor.image_processor)
    assert same(values, checkpoint.inputs(checkpoint.word, given, **settings))
    with pytest.raises(InvalidRequestError, match="a request cannot change rescale_factor; start the engine"):
        Own(tmp_path).read(checkpoint.word, given, settings)


REFUSED = [
    ("qwen3", {"max_pixel": 1}, "nothing is known about max_pixel; .* max_pixels, .*, resample"),
    ("qwen3", {"patch_size": 8}, "nothing is known about patch_size"),
    ("qwen3", {"max_pixels": 0}, "max_pixels 0 .* not from 1 to"),
    ("qwen3", {"max_pixels": "9"}, "max_pixels '9'"),
    ("qwen3", {"max_pixels": 1 << 40}, "max_pixels"),
    ("qwen3", {"max_pixels": 64}, "min_pixels 256 .* above max_pixels 64"),
    ("qwen3", {"size": {"height": 3}}, "size has shortest_edge, longest_edge, not"),
    ("qwen3", {"size": 3}, "size.shortest_edge None"),
    ("qwen3", {"image_std": [0, 0, 0]}, "image_std .* is 0"),
    ("internvl", {"max_patches": 1.5}, "max_patches 1.5"),
    ("internvl", {"max_patches": 2, "max_dynamic_patch": 2}, "max_dynamic_patch and another name"),
    ("internvl", {"crop_to_patches": 1}, "crop_to_patches must be true or false, not 1"),
    ("internvl", {"size": {"height": 48, "width": 48}}, "24 pixels, its image processor has 48"),
    ("idefics3", {"max_image_size": {"longest_edge": 16}}, "4 x 4 patches"),
    ("idefics3", {"do_image_splitting": "no"}, "do_image_splitting must be true or false"),
    ("llava", {"crop_size": {"height": 24, "width": 24}}, "30 pixels, its image processor has 24"),
    ("llava", {"do_pad": True}, "nothing is known about do_pad"),
    ("gemma3", {"pan_and_scan_min_ratio_to_activate": 0.5}, "pan_and_scan_min_ratio_to_activate 0.5"),
    ("gemma3", {"pan_and_scan_max_num_crops": 17}, "pan_and_scan_max_num_crops 17"),
    ("glm4v", {"size": {"longest_edge": 64 * 7}}, "size.shortest_edge 512 .* above size.longest_edge 448"),
    ("glm4v", {"max_pixels": 64 * 30}, "nothing is known about max_pixels"),
    ("gemma4, many rows", {"max_soft_tokens": 100}, "max_soft_tokens 100 .* none of .*70, 140, 280, 560, 1120"),
    ("gemma4, many rows", {"patch_size": 8}, "nothing is known about patch_size"),
    ("gemma4, many rows", {"image_mean": [0, 0, 0]}, "nothing is known about image_mean"),
]


def test_settings_that_are_refused(tmp_path):
    folders = {name: tmp_path / name for name, *_ in REFUSED}
    words = {name: CASES[name](folder).word for name, folder in folders.items()}
    for name, settings, reason in REFUSED:
        with pytest.raises(ConfigError, match=f"mm_processor_kwargs: .*{reason}"):
            Own(folders[name], settings)
        with pytest.raises(InvalidRequestError, match=f"mm_processor_kwargs: .*{reason}"):
            Own(folders[name]).read(words[name], [picture(9, 9)], settings)
    more = [
        ("qwen3", {"max_pixels": 64 * 41}),
        ("qwen3", {"min_pixels": 64 * 5}),
        ("internvl", {"max_patches": 7}),
        ("internvl", {"min_patches": 2}),
        ("idefics3", {"size": {"longest_edge": 76}}),
        ("gemma3", {"do_pan_and_scan": True}),
        ("glm4v", {"size": {"longest_edge": 64 * 81}}),
        ("glm4v", {"size": {"shortest_edge": 64 * 9}}),
        ("gemma3", {"pan_and_scan_min_crop_size": 9}),
        ("gemma4, many rows", {"max_soft_tokens": 280}),
    ]
    for name, settings in more:
        Own(folders[name], settings)
        with pytest.raises(
            InvalidRequestError, match="of a request is (above|below) the engine's .* start the engine with"
        ):
            Own(folders[name]).read(words[name], [picture(9, 9)], settings)
    with pytest.raises(InvalidRequestError, match="must be a dict, not list"):
        Own(folders["qwen3"]).read(words["qwen3"], [picture(9, 9)], [1])
    with pytest.raises(ConfigError, match="must hold numbers"):
        Own(folders["qwen3"], {"max_pixels": {3}})


def test_settings_of_a_model_of_text():
    with pytest.raises(ConfigError, match="mm_processor_kwargs: this model takes text only; leave it out"):
        Own("demo", {"max_pixels": 3})


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


def test_grids_of_squares():
    import transformers
    from transformers.image_processing_utils import select_best_resolution

    rng, count = random.Random(0), transformers.LlavaOnevisionProcessor._get_unpadded_features
    for number in range(2000):
        edge, sides = rng.choice([12, 336, 384]), rng.choice([1, 3, 24, 27])
        grids = tuple((rng.randint(1, 6), rng.randint(1, 6)) for _ in range(rng.randint(1, 36)))
        form = dataclasses.replace(GRID, fit="anyres", edge=edge, grids=grids)
        size = [rng.randint(1, 3000) if number % 2 else edge * rng.randint(1, 8) for _ in range(2)]
        lines, columns = fitting_grid(*size, form)
        best = select_best_resolution(size[::-1], [(lines * edge, columns * edge) for lines, columns in grids])
        assert best == (lines * edge, columns * edge), (size, form)
        most = rng.randint(1, 9)
        packed = SquareGrid(lines, columns, *size).packed(sides, most)
        named = SimpleNamespace(vision_aspect_ratio=f"anyres_max_{most}")
        expected = count(named, size[1], size[0], sides, sides, lines, columns)
        assert (math.prod(packed), packed[0]) == expected or 0 in expected, (size, form, sides, most)


@pytest.mark.parametrize("ops", [TORCH_CPU_OPS, NATIVE_CPU_OPS], ids=["torch", "native"])
def test_the_rows_of_the_tower(checkpoint, ops):
    own = Own(checkpoint.folder)
    model = build_model(own.config, torch.float32, 256)
    arena = HostArena("weights", weights_bytes(model))
    materialize(model, arena)
    load_weights(model, checkpoint.folder, ops)
    pack_weights(model, ops)
    given = [picture(61, 40), picture(20, 80, seed=1)]
    text = f"{checkpoint.word} and {checkpoint.word}"
    inputs = checkpoint.inputs(text, given)
    with torch.inference_mode():
        names = ("pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes", "image_position_ids")
        known = {key: inputs[key] for key in names if key in inputs}
        output = checkpoint.model.model.get_image_features(**known, return_dict=True)
        expected, deep = output.pooler_output, getattr(output, "deepstack_features", [])
        expected = expected.flatten(0, 1) if isinstance(expected, torch.Tensor) else torch.cat(tuple(expected))
        expected = torch.stack([expected, *map(torch.cat, deep)])
        _, places = own.read(text, given)
        rows = torch.cat([model.vision(place.tile, torch.device("cpu"), ops) for place in places], 1)
    assert expected.std() > 0.1
    torch.testing.assert_close(rows, expected, atol=2e-5, rtol=1e-4)
    arena.close()
