"""Checkpoints that read pictures too: their text model is loaded by itself, under its newer and its older names."""

import json
import re

import pytest
import torch
from kit.model.golden import PagedRun, assert_close, load_model, prompt
from safetensors.torch import load_file, save_file

from lullm.config.model import ModelConfig
from lullm.config.rope import RopeConfig
from lullm.errors import ModelLoadError
from lullm.models.fallback.choice import read_model_config
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.rule import is_beside_text

TEXT = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 1,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 16,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
QWEN_VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 14, "out_hidden_size": 48,
    "embed_dim": 32, "deepstack_visual_indexes": [], "fullatt_block_indexes": [0], "num_position_embeddings": 16,
}  # fmt: skip
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
FLAT_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]}}
MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
QWEN = (MROPE | {"head_dim": 16}, QWEN_VISION, {})
UNKNOWN = 999  # not in the vocabulary: without it a folder of Mistral 3 sees
PIXTRAL = (VISION | {"model_type": "pixtral"}, {"spatial_merge_size": 1, "image_token_index": UNKNOWN})
SIGLIP = VISION | {"model_type": "siglip_vision_model"}
CLIP = VISION | {"model_type": "clip_vision_model"}
GLM_VISION = {
    "depth": 1, "hidden_size": 32, "num_heads": 2, "patch_size": 14, "image_size": 28, "out_hidden_size": 48,
    "intermediate_size": 40,
}  # fmt: skip
GLM = {
    "head_dim": 12, "num_attention_heads": 4,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.5,
    },
}  # fmt: skip
GLM_WHOLE = {
    "head_dim": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2]},
}  # fmt: skip
GLM_MOE = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MISTRAL4 = GLM_MOE | {
    "model_type": "mistral4", "num_key_value_heads": 4, "head_dim": ..., "kv_lora_rank": 24, "q_lora_rank": 12,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 14,
}  # fmt: skip
CASES = {
    "Exaone4_5_": (
        {"model_type": "exaone4", "sliding_window": 20, "num_hidden_layers": 5},
        QWEN_VISION | {"num_key_value_heads": 1},
        {"image_token_id": 140, "video_token_id": 141},
    ),
    "Glm4v": (GLM, GLM_VISION, {}),
    "Glm4v, whole heads turn": (GLM_WHOLE, GLM_VISION, {}),
    "Glm46V": (GLM | {"model_type": "glm4v_text"}, GLM_VISION | {"model_type": "glm4v_vision"}, {}),
    "Glm4vMoe": (GLM | GLM_MOE, GLM_VISION, {}),
    "Idefics3": ({"model_type": "llama"}, VISION | {"model_type": "idefics3_vision"}, {}),
    "Mistral3": ({"model_type": "mistral"}, *PIXTRAL),
    "Mistral3, ministral3": ({"model_type": "ministral3"}, *PIXTRAL),
    "Mistral3, mistral4": (MISTRAL4, *PIXTRAL),
    "Gemma3": ({"model_type": "gemma3_text", "sliding_window": 20}, SIGLIP, {"mm_tokens_per_image": 4}),
    "Gemma4": (
        {
            "model_type": "gemma4_text", "sliding_window": 20, "global_head_dim": 32,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 131,
        },
        {
            "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 16, "model_type": "gemma4_vision",
        },
        {},
    ),
    "Qwen2VL": (FLAT_MROPE | {"head_dim": ...}, QWEN_VISION, {}),
    "Qwen2_5_VL": (FLAT_MROPE | {"head_dim": ...}, QWEN_VISION, {}),
    "Qwen3VL": QWEN,
    "Qwen3VLMoe": (MROPE | MOE, QWEN_VISION, {}),
    "InternVL": ({"model_type": "qwen3"}, VISION | {"model_type": "internvl_vision"}, {}),
    "Llama4": (
        {"num_local_experts": 3, "intermediate_size_mlp": 40, "attention_chunk_size": 20, "num_hidden_layers": 4},
        VISION | {"projector_input_dim": 32, "projector_output_dim": 32, "vision_output_dim": 32},
        {},
    ),
    "Llava": ({"model_type": "llama"}, CLIP, {}),
    "LlavaNext": ({"model_type": "mistral"}, CLIP, {}),
    "LlavaOnevision": ({"model_type": "qwen2", "head_dim": ...}, SIGLIP, {}),
    "SmolVLM": ({"model_type": "llama"}, VISION | {"model_type": "smolvlm_vision"}, {}),
    "AyaVision": ({"model_type": "cohere2", "head_dim": ..., "logit_scale": 1.0}, SIGLIP, {}),
    "Cohere2Vision": ({"model_type": "cohere2", "head_dim": ..., "logit_scale": 1.0}, SIGLIP, {}),
    "Lfm2Vl": (
        {"model_type": "lfm2", "head_dim": ..., "layer_types": ["conv", "full_attention", "conv"]},
        VISION | {"model_type": "siglip2_vision_model"},
        {},
    ),
    "Lfm3Vl": (
        {"model_type": "lfm3", "layer_types": ["conv", "full_attention", "sliding_attention"], "sliding_window": 20},
        VISION | {"model_type": "lfm3_vl_vision"},
        {},
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def checkpoint(request, tmp_path):
    """(folder, the logits of transformers for a text)."""
    import transformers

    name = request.param.partition(",")[0]
    cls = getattr(transformers, f"{name}ForConditionalGeneration")
    own, vision, options = CASES[request.param]
    text = {key: value for key, value in (TEXT | own).items() if value is not ...}
    model = cls(cls.config_class(text_config=text, vision_config=vision, **options)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in key and name != "Gemma3" else 0.0, 0.15, generator=generator)
        # transformers 5.24 cannot give Llama 4's output without pictures: it asks a text's for `image_outputs`
        compute = model.language_model if name == "Llama4" else model
        expected = compute(torch.tensor([prompt(1)])).logits[0]
    assert expected.std() > 0.3
    model.save_pretrained(tmp_path)
    return tmp_path, expected


def assert_loads(folder, expected, caplog):
    caplog.set_level("INFO", "lullm")
    assert read_model_config(folder, "auto").foreign is None
    assert "only the text model is loaded" in caplog.text
    assert_close(PagedRun(load_model(folder), TORCH_CPU_OPS, 1).step([(0, prompt(1))]), expected)


def test_the_text_model_is_loaded(checkpoint, caplog):
    folder, expected = checkpoint
    assert any(map(is_beside_text, load_file(folder / "model.safetensors")))
    assert_loads(folder, expected, caplog)


def test_under_the_older_names(checkpoint, caplog):
    folder, expected = checkpoint
    tensors = {}
    config = json.loads((folder / "config.json").read_text())
    is_turned = config["architectures"] == [
        "Qwen3VLMoeForConditionalGeneration"
    ]  # Llama 4's lie as transformers has them
    for name, tensor in load_file(folder / "model.safetensors").items():
        inner = re.sub(r"^(model\.)?((language|text)_model\.)?(model\.)?", "", name)
        is_text = inner.partition(".")[0] in ("embed_tokens", "layers", "norm")
        older = f"language_model.model.{inner}" if is_text else name.removeprefix("model.")
        tensors["language_model.lm_head.weight" if name.endswith("lm_head.weight") else older] = tensor
        if is_turned and ".experts." in name and tensor.dim() == 3:  # as they are released
            tensors[older] = tensor.transpose(1, 2).contiguous()
    assert any(name.startswith("language_model.model.layers.0.") for name in tensors)
    save_file(tensors, folder / "model.safetensors")
    assert "text_config" in config
    assert_loads(folder, expected, caplog)


@pytest.mark.parametrize("family", ["Qwen2VL", "Qwen2_5_VL"])
def test_files_of_qwen_without_a_text_config(tmp_path, family):
    """The released ones hold the keys of the text beside `vision_config`, and call the rope "mrope"."""
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}, "sliding_window": 32768}
    data = TEXT | {"head_dim": 12, "vision_config": QWEN_VISION, "use_sliding_window": False, "image_token_id": 7}
    config = ModelConfig.from_dict(data | rope | {"architectures": [f"{family}ForConditionalGeneration"]})
    assert config.architecture == "Qwen2ForCausalLM"
    assert config.family.ropes == (RopeConfig(rope_theta=1e6),) * 3
    assert config.family.rms_norm_eps == 1e-5


def test_tokens_of_pictures_are_no_unknown_keys():
    """GLM-4.5V's file has them in `text_config`."""
    text = TEXT | GLM | GLM_MOE | {"model_type": "glm4v_moe_text", "image_start_token_id": 5, "video_end_token_id": 6}
    data = {"architectures": ["Glm4vMoeForConditionalGeneration"], "text_config": text, "image_token_id": 7}
    config = ModelConfig.from_dict(data)
    assert config.architecture == "Glm4MoeForCausalLM" and config.unknown_keys == ()


def test_a_text_model_that_is_none_of_ours_is_named():
    data = {"architectures": ["LlavaForConditionalGeneration"], "text_config": TEXT | {"model_type": "opt_new"}}
    with pytest.raises(ModelLoadError, match="LlavaForConditionalGeneration of opt_new"):
        ModelConfig.from_dict(data)
