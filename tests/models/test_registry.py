"""What the registry refuses, and the shape of what it builds."""

import gc

import pytest
import torch

from lullm.config.model import ModelConfig
from lullm.config.parallel.share import share_of
from lullm.errors import ModelLoadError
from lullm.models.registry import build_model
from lullm.nn.experts import Expert
from lullm.types.parallel.placement import Axis
from lullm.weights.rows.cut import cuts_of

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
        match="'RwkvForCausalLM'.*Gemma2ForCausalLM, Gemma3ForCausalLM, .*Mistral.*, Qwen3ForCausalLM",
    ):
        build_model(config_of(architectures=["RwkvForCausalLM"]), torch.float32, 128)


def test_a_model_takes_no_memory_before_it_is_materialized():
    huge = config_of(vocab_size=10**6, hidden_size=10**5, intermediate_size=10**6)
    model = build_model(huge, torch.bfloat16, 128)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not any(p.requires_grad for p in model.parameters())
    assert {b.device.type for b in model.buffers()} == {"cpu"}


@pytest.mark.parametrize("deals", [False, True], ids=["parts of experts", "whole experts"])
def test_a_worker_builds_its_share_only(monkeypatch, deals):
    """Of the whole model, which says what a share is a part of, one expert of each layer; nobody looks for garbage."""
    experts = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2}
    config = config_of(**experts, moe_intermediate_size=16, norm_topk_prob=True)
    share = share_of(config, Axis(1, 2), deals)
    made = []
    init = Expert.__init__

    def count(self, *arguments):
        made.append(gc.isenabled())
        init(self, *arguments)

    monkeypatch.setattr(Expert, "__init__", count)
    model = build_model(share, torch.float32, 128)
    assert len(made) == 2 * ((4 if deals else 8) + 1) and not any(made) and gc.isenabled()
    whole = build_model(config, torch.float32, 128)
    assert model.cuts == cuts_of(model, whole, share.share) and len(model.cuts) >= 2 * (2 if deals else 18)


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
