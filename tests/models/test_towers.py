"""Checkpoints that read pictures too: their text model is loaded by itself, under its newer and its older names."""

import json

import pytest
import torch
from kit.model.golden import PagedRun, assert_close, load_model, prompt
from safetensors.torch import load_file, save_file

from lullm.models.fallback.choice import read_model_config
from lullm.ops.selection import TORCH_CPU_OPS

TEXT = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "pad_token_id": 1,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 2, "head_dim": 16,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
CASES = {
    "Mistral3": {"model_type": "mistral"},
    "Mistral3, ministral3": {"model_type": "ministral3"},
    "Gemma3": {"model_type": "gemma3_text", "sliding_window": 20},
    "Gemma4": {
        "model_type": "gemma4_text", "sliding_window": 20, "global_head_dim": 32, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 131,
    },
}  # fmt: skip


@pytest.fixture(params=CASES)
def checkpoint(request, tmp_path):
    """(folder, the logits of transformers for a text)."""
    import transformers

    name = request.param.partition(",")[0]
    cls = getattr(transformers, f"{name}ForConditionalGeneration")
    vision = VISION | {"model_type": "pixtral" if name == "Mistral3" else "siglip_vision_model"}
    options = {"Mistral3": {"spatial_merge_size": 1}, "Gemma3": {"mm_tokens_per_image": 4}, "Gemma4": {}}[name]
    if name == "Gemma4":
        vision = {
            "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 16, "model_type": "gemma4_vision",
        }  # fmt: skip
    text = TEXT | CASES[request.param]
    model = cls(cls.config_class(text_config=text, vision_config=vision, **options)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in key and name != "Gemma3" else 0.0, 0.15, generator=generator)
        expected = model(torch.tensor([prompt(1)])).logits[0]
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
    assert any("vision_tower" in name for name in load_file(folder / "model.safetensors"))
    assert_loads(folder, expected, caplog)


def test_under_the_older_names(checkpoint, caplog):
    folder, expected = checkpoint
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        inner = name.removeprefix("model.").removeprefix("language_model.").removeprefix("model.")
        is_text = inner.partition(".")[0] in ("embed_tokens", "layers", "norm")
        older = f"language_model.model.{inner}" if is_text else name.removeprefix("model.")
        tensors["language_model.lm_head.weight" if name.endswith("lm_head.weight") else older] = tensor
    assert "language_model.model.layers.0.mlp.up_proj.weight" in tensors
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    assert "text_config" in config
    assert_loads(folder, expected, caplog)
