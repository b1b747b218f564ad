"""What the registry refuses, and the shape of what it builds."""

import pytest
import torch

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.models.registry import build_model

DATA = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 128,
}  # fmt: skip


def config_of(**changes):
    return ModelConfig.from_dict(DATA | changes)


def test_an_unknown_architecture_lists_the_known():
    with pytest.raises(
        ModelLoadError,
        match="'MambaForCausalLM'.*Gemma2ForCausalLM, Gemma3ForCausalLM, .*Mistral.*, Qwen3ForCausalLM",
    ):
        build_model(config_of(architectures=["MambaForCausalLM"]), torch.float32, 128)


def test_a_model_takes_no_memory_before_it_is_materialized():
    huge = config_of(vocab_size=10**6, hidden_size=10**5, intermediate_size=10**6)
    model = build_model(huge, torch.bfloat16, 128)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in model.parameters())
    assert {b.device.type for b in model.buffers()} == {"cpu"}


@pytest.mark.parametrize(
    "architecture",
    ["Qwen3ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"],
)
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_of_a_family(architecture, tied):
    config = config_of(architectures=[architecture], tie_word_embeddings=tied)
    names = {name for name, _ in build_model(config, torch.float32, 128).named_parameters()}
    assert ("lm_head.weight" in names) == (not tied)
    assert ("model.layers.1.self_attn.q_norm.weight" in names) == (
        architecture[:5] in ("Qwen3", "Gemma") and "Gemma2" not in architecture
    )
    assert not any(name.endswith("bias") for name in names)


@pytest.mark.parametrize(("architecture", "inner"), [("GPT2LMHeadModel", "n_inner"), ("OPTForCausalLM", "ffn_dim")])
def test_learned_positions_are_not_stretched(architecture, inner):
    config = ModelConfig.from_dict(DATA | {"architectures": [architecture], inner: 48})
    build_model(config, torch.float32, 128)
    with pytest.raises(ModelLoadError, match="128 positions; max_model_len .129."):
        build_model(config, torch.float32, 129)
