"""What folders say about pictures: read, or a reason to load the text model alone."""

import json

import pytest

from lullm.config.model import ModelConfig
from lullm.config.vision.vision import MLPConnector, ShuffleConnector

TEXT = {
    "model_type": "llama", "vocab_size": 32064, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
}  # fmt: skip
LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 32000, "ignore_index": -100,
    "text_config": TEXT, "projector_hidden_act": "gelu", "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default", "tie_word_embeddings": False,
    "vision_config": {
        "hidden_size": 1024, "image_size": 336, "intermediate_size": 4096, "model_type": "clip_vision_model",
        "num_attention_heads": 16, "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
        "vocab_size": 32000,
    },
}  # fmt: skip
LLAVA_PICTURES = {
    "crop_size": {"height": 336, "width": 336}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True,
    "do_rescale": True, "do_resize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_processor_type": "CLIPImageProcessor", "image_std": [0.26862954, 0.26130258, 0.27577711],
    "processor_class": "LlavaProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 336},
}  # fmt: skip
SMOL = {
    "architectures": ["SmolVLMForConditionalGeneration"], "image_token_id": 31990, "scale_factor": 3,
    "text_config": TEXT, "tie_word_embeddings": False,
    "vision_config": {
        "hidden_size": 1152, "image_size": 384, "intermediate_size": 4304, "max_image_size": {"longest_edge": 384},
        "model_type": "smolvlm_vision", "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14,
        "size": {"longest_edge": 1920}, "use_base_siglip": False,
    },
}  # fmt: skip
SMOL_PICTURES = {
    "do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True, "do_rescale": True,
    "do_resize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 1,
    "image_processor_type": "SmolVLMImageProcessor", "max_image_size": {"longest_edge": 384},
    "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 1536},
}  # fmt: skip

INTERN = {
    "architectures": ["InternVLForConditionalGeneration"], "downsample_ratio": 0.5, "image_seq_length": 256,
    "image_token_id": 31990, "model_type": "internvl", "projector_hidden_act": "gelu",
    "text_config": TEXT | {"model_type": "qwen2"}, "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "vision_config": {
        "architectures": ["InternVisionModel"], "attention_bias": True, "attention_dropout": 0.0, "dropout": 0.0,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 1024, "image_size": [448, 448],
        "initializer_factor": 0.1, "initializer_range": 1e-10, "intermediate_size": 4096, "layer_norm_eps": 1e-06,
        "layer_scale_init_value": 0.1, "model_type": "internvl_vision", "norm_type": "layer_norm",
        "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": [14, 14],
        "projection_dropout": 0.0, "use_absolute_position_embeddings": True, "use_mask_token": False,
        "use_mean_pooling": True, "use_qk_norm": False,
    },
}  # fmt: skip
INTERN_PICTURES = {
    "crop_size": None, "crop_to_patches": False, "default_to_square": True, "do_center_crop": None,
    "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406], "image_processor_type": "GotOcr2ImageProcessorFast",
    "image_std": [0.229, 0.224, 0.225], "max_patches": 12, "min_patches": 1, "processor_class": "InternVLProcessor",
    "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"height": 448, "width": 448},
}  # fmt: skip

MOE = {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "num_local_experts": 4,
}  # fmt: skip


def tower(config, **keys):
    return config | {"vision_config": config["vision_config"] | keys}


def read(folder, config, pictures, file="preprocessor_config.json"):
    (folder / "config.json").write_text(json.dumps(config))
    if pictures is not None:
        (folder / file).write_text(json.dumps(pictures))
    return ModelConfig.from_folder(folder)


def test_llava(tmp_path):
    vision = read(tmp_path, LLAVA, LLAVA_PICTURES).vision
    assert vision.rows_per_tile == 576 and vision.tower.num_layers == 23 and vision.image_token_id == 32000
    assert vision.connector == MLPConnector("gelu", True) and vision.picture.fit == "crop"


def test_smolvlm(tmp_path):
    vision = read(tmp_path, SMOL, SMOL_PICTURES).vision
    assert vision.rows_per_tile == 81 and vision.connector == ShuffleConnector(3) and vision.frame == "places"
    assert vision.tower.hidden_act == "gelu_pytorch_tanh" and vision.tower.num_layers == 27
    assert (vision.picture.fit, vision.picture.edge, vision.picture.resize_edge) == ("split", 384, 1536)


def test_internvl(tmp_path, caplog):
    vision = read(tmp_path, INTERN, INTERN_PICTURES).vision
    assert vision.rows_per_tile == 256 and vision.connector == MLPConnector("gelu", True, True, 2)
    assert vision.tower.has_scales and vision.tower.has_attention_bias and not vision.tower.has_post_norm
    assert vision.tower.num_layers == 24 and vision.tower.positions == "each" and vision.frame == "ends"
    # Its processor cuts, though the file of its image processor says that it does not.
    assert (vision.picture.fit, vision.picture.edge, vision.picture.max_tiles) == ("grid", 448, 12)
    numbers = {"image_size": 448, "patch_size": 14}
    assert read(tmp_path, tower(INTERN, **numbers), INTERN_PICTURES).vision == vision
    normed = read(tmp_path, tower(INTERN, use_mean_pooling=False), INTERN_PICTURES).vision
    assert normed.tower.has_post_norm
    assert "ignored" not in caplog.text


def test_older_and_newer_files(tmp_path):
    older = {key: value for key, value in LLAVA.items() if key != "vision_config"}
    fast = LLAVA_PICTURES | {"image_processor_type": "CLIPImageProcessorFast"}
    expected = read(tmp_path, LLAVA, LLAVA_PICTURES).vision
    assert read(tmp_path, older, LLAVA_PICTURES).vision == expected
    assert read(tmp_path, LLAVA, fast | {"size": 336, "crop_size": 336}).vision == expected
    (tmp_path / "preprocessor_config.json").unlink()
    whole = {"image_processor": LLAVA_PICTURES, "processor_class": "LlavaProcessor"}
    assert read(tmp_path, LLAVA, whole, "processor_config.json").vision == expected


@pytest.mark.parametrize(
    ("config", "pictures", "reason"),
    [
        (LLAVA, None, "no preprocessor_config.json"),
        (LLAVA | {"vision_feature_layer": [-2, -5]}, LLAVA_PICTURES, "vision_feature_layer"),
        (LLAVA | {"vision_feature_select_strategy": "cls"}, LLAVA_PICTURES, "vision_feature_select_strategy"),
        (LLAVA | {"image_token_index": 32064}, LLAVA_PICTURES, "image token 32064"),
        (LLAVA | {"vision_config": {"model_type": "pixtral"}}, LLAVA_PICTURES, "pixtral"),
        (LLAVA | {"vision_config": LLAVA["vision_config"] | {"num_channels": 4}}, LLAVA_PICTURES, "num_channels"),
        (LLAVA | {"vision_config": LLAVA["vision_config"] | {"hidden_act": "mish"}}, LLAVA_PICTURES, "hidden_act"),
        (LLAVA | {"vision_config": LLAVA["vision_config"] | {"image_size": 224}}, LLAVA_PICTURES, "224 pixels"),
        (LLAVA | {"text_config": TEXT | {"model_type": "cohere2"}}, LLAVA_PICTURES, "Cohere2"),
        (LLAVA, LLAVA_PICTURES | {"do_resize": False}, "do_resize"),
        (LLAVA, LLAVA_PICTURES | {"image_processor_type": "PixtralImageProcessor"}, "PixtralImageProcessor"),
        (LLAVA, LLAVA_PICTURES | {"crop_size": {"height": 336, "width": 224}}, "crop_size"),
        (LLAVA, LLAVA_PICTURES | {"size": {"shortest_edge": 224}}, "shortest_edge 224"),
        (LLAVA, LLAVA_PICTURES | {"image_mean": [0.5]}, "image_mean"),
        (LLAVA, LLAVA_PICTURES | {"image_std": [float("nan"), 1, 10**400]}, "image_std"),
        (LLAVA | {"vision_config": {"image_size": 2048, "patch_size": 1}}, LLAVA_PICTURES, "2048 patches"),
        (LLAVA, LLAVA_PICTURES | {"resample": "cubic"}, "resample"),
        (SMOL | {"scale_factor": 4}, SMOL_PICTURES, "scale_factor 4"),
        (SMOL, SMOL_PICTURES | {"size": {"longest_edge": 384 * 17}}, "16 tiles"),
        (SMOL, LLAVA_PICTURES, "Idefics3's"),
        (INTERN, SMOL_PICTURES, "GOT-OCR 2's"),
        (INTERN, INTERN_PICTURES | {"size": {"height": 448, "width": 336}}, "is not a square"),
        (INTERN, INTERN_PICTURES | {"size": {"height": 336, "width": 336}}, "448 pixels, its image processor has 336"),
        (INTERN, INTERN_PICTURES | {"max_patches": 335}, "max_patches 335"),
        (INTERN, INTERN_PICTURES | {"min_patches": 13}, "min_patches 13"),
        (INTERN, INTERN_PICTURES | {"do_rescale": False}, "do_rescale"),
        (INTERN | {"downsample_ratio": 0.4}, INTERN_PICTURES, "downsample_ratio 0.4"),
        (INTERN | {"downsample_ratio": 2.0}, INTERN_PICTURES, "downsample_ratio 2.0"),
        (INTERN | {"downsample_ratio": 0.2}, INTERN_PICTURES, "32 x 32 patches"),
        (INTERN | {"vision_feature_layer": [-1, -2]}, INTERN_PICTURES, "is not one layer"),
        (INTERN | {"vision_feature_layer": 25}, INTERN_PICTURES, "vision_feature_layer 25"),
        (INTERN | {"vision_feature_select_strategy": "full"}, INTERN_PICTURES, "vision_feature_select_strategy"),
        (INTERN | {"projector_hidden_act": "mish"}, INTERN_PICTURES, "projector_hidden_act"),
        (INTERN | {"text_config": TEXT | MOE}, INTERN_PICTURES, "Qwen3Moe"),
        (tower(INTERN, norm_type="batch_norm"), INTERN_PICTURES, "norm_type"),
        (tower(INTERN, image_size=[448, 224]), INTERN_PICTURES, "image_size"),
        (tower(INTERN, model_type="clip_vision_model"), INTERN_PICTURES, "clip_vision_model"),
        (tower(INTERN, use_qk_norm="yes"), INTERN_PICTURES, "use_qk_norm"),
        (
            LLAVA | {"architectures": ["LlavaOnevisionForConditionalGeneration"]},
            LLAVA_PICTURES,
            "LLaVA 1.5, Idefics3, SmolVLM and InternVL so far, not with LlavaOnevision",
        ),
    ],
)
def test_a_reason_for_the_text_model_alone(tmp_path, caplog, config, pictures, reason):
    caplog.set_level("INFO", "lullm")
    text = config["text_config"]
    if text["model_type"] == "cohere2":
        text = {key: value for key, value in text.items() if key != "rms_norm_eps"}
        config = config | {"text_config": text | {"logit_scale": 1.0, "sliding_window": 8, "layer_norm_eps": 1e-5}}
    found = read(tmp_path, config, pictures)
    assert found.vision is None and reason in found.no_vision
    assert f"only the text model is loaded; what reads pictures is passed over: {found.no_vision}" in caplog.text


def test_models_of_text_need_no_reason(tmp_path):
    found = read(tmp_path, TEXT | {"architectures": ["LlamaForCausalLM"]}, LLAVA_PICTURES)
    assert found.vision is None and found.no_vision == ""
