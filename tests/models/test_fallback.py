"""Architectures without a family here, by transformers' code over the paged cache: its logits, or a refusal by name."""

import json

import pytest
import torch
from kit.model.families import ROPE
from kit.model.golden import PagedRun, assert_close, golden_logits, prompt, random_model

from lullm.arena.host import HostArena
from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.errors import ConfigError, ModelLoadError
from lullm.models.fallback import blueprint
from lullm.models.fallback.choice import read_model_config
from lullm.models.fallback.config import foreign_config
from lullm.models.registry import build_model
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.loader import load_weights
from lullm.weights.materialize import materialize, weights_bytes

SIZES = {
    "vocab_size": 131, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 12,
    "num_key_value_heads": 4,
}  # fmt: skip
CASES = {
    "StableLm": HALF,
    "Starcoder2": {"sliding_window": 20, "tie_word_embeddings": True},
    "Cohere": {"logit_scale": 1.0},
    "Cohere2": {"sliding_window": 20, "num_hidden_layers": 5, "logit_scale": 1.0, "tie_word_embeddings": False},
    "GPTNeoX": {},
    "GPTBigCode": {"n_positions": 128},
    "Apertus": {},  # parameters without a dimension
    "Gemma2": {"sliding_window": 20, "head_dim": 16, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0},
    "MiniCPM3": LATENT,  # heads of 16 for queries and keys, of 12 for values
    "Phi": HALF | {"rope_parameters": ROPE["dynamic"]},
}


def saved(folder, family, options):
    """transformers' model, saved."""
    folder.mkdir(exist_ok=True)
    model = random_model(family, SIZES | options)
    model.save_pretrained(folder)
    return model


def load(folder, dtype=torch.float32, max_model_len=128):
    config = foreign_config(json.loads((folder / "config.json").read_text()))
    model = build_model(config, dtype, max_model_len)
    assert all(parameter.is_meta for parameter in model.parameters())
    arena = HostArena("weights", weights_bytes(model))
    materialize(model, arena)
    assert arena.used_bytes <= weights_bytes(model)
    load_weights(model, folder, TORCH_CPU_OPS)
    return model


@pytest.mark.parametrize("family", CASES)
def test_logits(tmp_path, family):
    theirs = saved(tmp_path, family, CASES[family])
    run = PagedRun(load(tmp_path), TORCH_CPU_OPS, 2)
    first, second = prompt(1), prompt(2)
    expected = golden_logits(theirs, first)
    assert expected.std() > 0.3, "otherwise 1e-4 would prove little"
    # In chunks, with another sequence beside them.
    parts = [
        run.step([(0, first[:50])]),
        run.step([(1, second[:9]), (0, first[50:70])])[9:],
        run.step([(0, first[70:71]), (1, second[9:10])])[:1],
        run.step([(0, first[71:])]),
    ]
    assert_close(torch.cat(parts), expected)


def test_names_of_the_inner_model_alone(tmp_path):
    """A checkpoint of the part without a head, and tied to it."""
    theirs = saved(tmp_path / "whole", "Starcoder2", {"tie_word_embeddings": True})
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    theirs.model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    logits = PagedRun(load(tmp_path), TORCH_CPU_OPS, 1).step([(0, prompt(1))])
    assert_close(logits, golden_logits(theirs, prompt(1)))


def config_of(family, **options):
    """A config.json as transformers writes it."""
    import transformers

    name = f"{family}ForCausalLM"
    config = getattr(transformers, name).config_class(**SIZES | options)
    return json.loads(config.to_json_string(use_diff=False)) | {"architectures": [name]}


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("Bloom", {}, "computes attention, or with its mask or its tokens, by itself"),
        ("Falcon", {}, "over another attention than its own: it knows only the attentions that it has itself; there"),
        ("XGLM", {"d_model": 48, "attention_heads": 4}, "computes attention, or with its mask"),
        ("RecurrentGemma", {}, "recurrent or convolve"),
        ("Lfm2", {}, "computes attention, or with its mask or its tokens|recurrent or convolve"),
        ("DiffLlama", {}, "has 3 layers, and calls attention 6 times from 3 modules"),
        ("Llama4", {"head_dim": 12}, "a mask that is neither causal nor a sliding window"),
        ("DeepseekV3", {}, "merges tensors of DeepseekV3ForCausalLM .*experts.*gate_proj"),
        ("Bart", {}, "takes the positions of its tokens from their number"),
    ],
)
def test_what_goes_past_the_interface_is_refused(family, options, message):
    with pytest.raises(ModelLoadError, match=message) as caught:
        foreign_config(config_of(family, **options))
    assert f"{family}ForCausalLM" in str(caught.value) or "layers.0" in str(caught.value)


def test_unknown_architectures_and_code_in_checkpoints_are_refused():
    data = config_of("StableLm", **HALF) | {"architectures": ["NewForCausalLM"], "model_type": "new"}
    with pytest.raises(ModelLoadError, match="has no causal language model 'NewForCausalLM'.*'new'.*newer"):
        foreign_config(data)
    with pytest.raises(ModelLoadError, match="runs no code of a checkpoint"):
        foreign_config(data | {"auto_map": {"AutoModelForCausalLM": "modeling_new.New"}})
    assert EngineConfig.from_options({"trust_remote_code": True}) == EngineConfig(), "there is nothing to trust"
    with pytest.raises(ModelLoadError, match="quantized checkpoints"):
        foreign_config(config_of("StableLm", **HALF) | {"quantization_config": {"quant_method": "gptq"}})
    with pytest.raises(ModelLoadError, match="dtype 'int3' is not one of"):
        foreign_config(config_of("StableLm", **HALF) | {"dtype": "int3"})


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("head_dim", 4096), ("hidden_size", 2**20), ("num_hidden_layers", 1024), ("num_attention_heads", 4096),
        ("intermediate_size", 2**20), ("max_position_embeddings", 2**25), ("vocab_size", 2**31 - 1), ("d_kv", 4096),
    ],
)  # fmt: skip
def test_absurd_sizes_are_refused_before_anything_is_built(monkeypatch, key, most):
    """A head of 100 million elements took 1.7 GB before transformers' own error."""
    data = config_of("StableLm", **HALF)
    monkeypatch.setattr(blueprint, "_probe", lambda *arguments: pytest.fail("it was built"))
    for value in (most + 1, -most - 1, 10**30, 1e30):
        for changed in (data | {key: value}, data | {"sub_config": {"deeper": {key: value}}}):
            with pytest.raises(ModelLoadError, match=f"{key} must be at most {most}, not"):
                foreign_config(changed)


def test_a_rotation_that_follows_the_length_is_refused(tmp_path):
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, **factors}
    saved(tmp_path, "Phi3", {"rope_parameters": rope, "original_max_position_embeddings": 32})
    load(tmp_path, max_model_len=32)
    with pytest.raises(ModelLoadError, match="longrope.*set max_model_len to at most 32"):
        load(tmp_path, max_model_len=33)


def test_who_computes_what(tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", "lullm")
    (tmp_path / "config.json").write_text(json.dumps(config_of("Persimmon")))
    config = read_model_config(tmp_path, "auto")
    assert config.foreign is not None and "PersimmonForCausalLM runs by transformers' own code" in caplog.text
    assert "no family for it" in caplog.text
    with pytest.raises(
        ModelLoadError, match="'PersimmonForCausalLM' is not supported; known are.*install lullm.transf"
    ):
        read_model_config(tmp_path, "lullm")
    for options in ({"quantization": "int8"}, {"kv_cache_dtype": "fp8"}, {"batch_invariant": True}):
        with pytest.raises(ConfigError, match="PersimmonForCausalLM, which is computed by transformers"):
            EngineConfig(**options).resolve(config)
    (tmp_path / "config.json").write_text(json.dumps(config_of("Olmo2")))
    assert read_model_config(tmp_path, "auto").foreign is None
    assert read_model_config(tmp_path, "transformers").foreign is not None
    (tmp_path / "config.json").write_text(json.dumps(config_of("Persimmon")))

    def missing():
        raise ModelLoadError("install lullm[transformers]")

    monkeypatch.setattr(blueprint, "installed", missing)
    with pytest.raises(ModelLoadError, match="'PersimmonForCausalLM' is not supported"):
        read_model_config(tmp_path, "auto")
    with pytest.raises(ModelLoadError, match="install lullm.transformers"):
        read_model_config(tmp_path, "transformers")


@pytest.mark.parametrize(
    ("family", "options", "key"),
    [("StableLm", HALF | {"qk_layernorm": True}, "qk_layernorm"), ("Cohere", {"use_qk_norm": True}, "use_qk_norm")],
)
def test_what_the_own_family_lacks_is_computed_by_transformers(tmp_path, caplog, monkeypatch, family, options, key):
    """StableLM 2 12B and Command R+ were refused by 'auto', and ran by 'transformers'."""
    caplog.set_level("INFO", "lullm")
    theirs = saved(tmp_path, family, options | {"logit_scale": 1.0})
    config = read_model_config(tmp_path, "auto")
    assert config.foreign is not None and f"since lullm's own does not compute {key}" in caplog.text
    logits = PagedRun(load(tmp_path), TORCH_CPU_OPS, 1).step([(0, prompt(1))])
    assert_close(logits, golden_logits(theirs, prompt(1)))
    with pytest.raises(ModelLoadError, match=f"{key} True .only False is.*not implemented"):
        read_model_config(tmp_path, "lullm")
    monkeypatch.setattr(blueprint, "has_architecture", lambda architecture: False)
    with pytest.raises(ModelLoadError, match=f"{key} True .only False is.*not implemented"):
        read_model_config(tmp_path, "auto")


def test_a_key_that_transformers_passes_over_is_refused_by_auto(tmp_path):
    """transformers' Llama would compute it without the factor, and say nothing."""
    for options in ({"attention_multiplier": 0.3}, {"attention_multiplier": 0.3, "is_causal": False}):
        (tmp_path / "config.json").write_text(json.dumps(config_of("Llama") | options))
        with pytest.raises(ModelLoadError, match="attention_multiplier 0.3.*not implemented for Llama") as caught:
            read_model_config(tmp_path, "auto")
        assert "nor does" not in str(caught.value)


def test_what_neither_computes_names_both_reasons(tmp_path):
    data = config_of("StableLm", **HALF) | {"qk_layernorm": True, "quantization_config": {"quant_method": "gptq"}}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ModelLoadError, match="qk_layernorm True.*nor does model_impl='transformers'.*quantized"):
        read_model_config(tmp_path, "auto")


def test_only_windows_and_causal_masks_are_read_from_masks():
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        chunked_causal_mask_function,
        sliding_window_causal_mask_function,
    )

    note = blueprint._MaskNote
    left = torch.zeros(1, dtype=torch.int64)
    assert note(causal_mask_function, None).kind() == ModelConfig.from_dict(config_of("Llama")).layer_kinds[0]
    assert note(sliding_window_causal_mask_function(8), 8).kind().window == 8
    assert note(sliding_window_causal_mask_function(9), 8).kind() is None
    assert note(chunked_causal_mask_function(8, left), 8).kind() is None
    assert note(bidirectional_mask_function, None).kind() is None
