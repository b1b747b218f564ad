"""Qwen3.5 as it is published: beside a tower for pictures, with layers that draft tokens, experts in one tensor."""

import json

import pytest
import torch
from kit.model.families import CASES
from kit.model.golden import SIZES, PagedRun, assert_close, golden_logits, load_model, prompt, random_model, save_model
from safetensors.torch import load_file, save_file

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.ops.selection import TORCH_CPU_OPS

VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4, "out_hidden_size": 48,
    "num_position_embeddings": 16,
}  # fmt: skip


def save_whole_model(folder, family, **options):
    """A checkpoint of language model and tower; the language model's logits of `prompt(1)`."""
    import transformers

    config_class = getattr(transformers, f"{family}Config")
    text = SIZES | CASES[family].variants["plain"] | options
    config = config_class(text_config=text, vision_config=VISION, tie_word_embeddings=False)
    theirs = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.15, generator=generator)
    theirs.save_pretrained(folder)
    return golden_logits(theirs, prompt(1))


@pytest.mark.parametrize("family", ["Qwen3_5", "Qwen3_5Moe"])
def test_the_text_model_is_loaded_without_its_tower(tmp_path, family, caplog):
    expected = save_whole_model(tmp_path, family)
    data = json.loads((tmp_path / "config.json").read_text())
    assert data["architectures"] == [f"{family}ForConditionalGeneration"] and "num_hidden_layers" not in data
    assert any(name.startswith("model.visual.") for name in load_file(tmp_path / "model.safetensors"))
    caplog.set_level("INFO", "lullm")
    model = load_model(tmp_path)
    assert "only the text model is loaded" in caplog.text
    assert model.config.architecture == f"{family}ForCausalLM"
    assert expected.std() > 0.3
    assert_close(PagedRun(model, TORCH_CPU_OPS, 1).step([(0, prompt(1))]), expected)


def test_a_model_of_other_pictures_is_refused():
    with pytest.raises(ModelLoadError, match="reads more than text"):
        ModelConfig.from_dict({"architectures": ["MllamaForConditionalGeneration"], "text_config": SIZES})


@pytest.mark.parametrize("is_stacked", [True, False])
def test_experts_come_in_one_tensor_or_one_by_one(tmp_path, is_stacked):
    theirs = save_model(tmp_path, "Qwen3_5Moe", CASES["Qwen3_5Moe"].variants["plain"])
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if ".experts." not in name}
    for name, tensor in theirs.state_dict().items():
        if ".experts." not in name:
            continue
        if is_stacked:
            tensors[name] = tensor.clone()
            continue
        prefix, _, last = name.rpartition(".")
        for number, own in enumerate(tensor):
            parts = own.chunk(2) if last == "gate_up_proj" else (own,)
            names = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
            for part, values in zip(names, parts, strict=True):
                tensors[f"{prefix}.{number}.{part}.weight"] = values.clone()
    save_file(tensors, file)
    run = PagedRun(load_model(tmp_path), TORCH_CPU_OPS, 1)
    assert_close(run.step([(0, prompt(1))]), golden_logits(theirs, prompt(1)))
    tensors.pop(next(name for name in sorted(tensors) if ".experts." in name))
    save_file(tensors, file)
    with pytest.raises(ModelLoadError, match=r"missing tensor model\.layers\.0\.mlp\.experts\.0\.down_proj\.weight"):
        load_model(tmp_path)


@pytest.mark.parametrize("family", ["Qwen3Next", "Qwen3_5"])
def test_layers_that_draft_are_not_loaded(tmp_path, family):
    theirs = save_model(tmp_path, family, CASES[family].variants["plain"])
    file = tmp_path / "model.safetensors"
    drafts = {"mtp.fc.weight": torch.zeros(48, 96), "mtp.layers.0.input_layernorm.weight": torch.zeros(48)}
    save_file(load_file(file) | drafts, file)
    run = PagedRun(load_model(tmp_path), TORCH_CPU_OPS, 1)
    assert_close(run.step([(0, prompt(1))]), golden_logits(theirs, prompt(1)))


def test_multi_dimensional_ropes_are_plain_in_text(tmp_path):
    options = CASES["Qwen3_5"].variants["plain"] | {
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_interleaved": True,
            "mrope_section": [2, 1, 1],
        }
    }  # fmt: skip
    theirs = save_model(tmp_path, "Qwen3_5", options)
    run = PagedRun(load_model(tmp_path), TORCH_CPU_OPS, 1)
    assert_close(run.step([(0, prompt(1))]), golden_logits(theirs, prompt(1)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_value_heads": 3}, "linear_num_value_heads .3. must be a multiple of linear_num_key_heads .2."),
        ({"layer_types": ["linear_attention"]}, "layer_types .* names 1 layers"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types .*must be a list of full_attention and linear"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"attn_output_gate": False}, "attn_output_gate False"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    data = {"architectures": ["Qwen3_5ForCausalLM"], **SIZES, **CASES["Qwen3_5"].variants["plain"], **changes}
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_dict(data)


def test_random_models_have_states_that_matter():
    """Without the tokens far behind, the logits differ: what the tests above compare does go through the states."""
    model = random_model("Qwen3_5", SIZES | CASES["Qwen3_5"].variants["plain"])
    tokens = prompt(1, 60)
    with torch.no_grad():
        for layer in model.model.layers:
            if hasattr(layer, "self_attn"):
                layer.self_attn.o_proj.weight.zero_()
    changed = [tokens[0] + 1, *tokens[1:]]
    assert (golden_logits(model, tokens)[8] - golden_logits(model, changed)[8]).abs().max() > 0.01
