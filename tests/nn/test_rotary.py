"""The rotary tables against transformers' own, for every kind."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.nn.rotary import Rotary, rotary_frequencies

transformers = pytest.importorskip("transformers")
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # noqa: E402

KINDS = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 128,
    },
    "yarn, its own attention factor": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128,
        "attention_factor": 0.7, "beta_fast": 20.0, "beta_slow": 2.0,
    },
    "yarn, mscale, not truncated": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128,
        "mscale": 0.9, "mscale_all_dim": 0.6, "truncate": False,
    },
}  # fmt: skip


def configs(parameters, head_dim=64, max_len=512):
    """The same config for both sides."""
    data = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "hidden_size": 2 * head_dim, "num_hidden_layers": 1,
        "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": head_dim,
        "max_position_embeddings": max_len, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    theirs = transformers.LlamaConfig(**data, rope_parameters=dict(parameters))
    return ModelConfig.from_dict({**data, "rope_parameters": parameters}), theirs


def rope_of(config):
    [rope] = set(config.family.ropes)
    return rope


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("parameters", KINDS.values(), ids=KINDS.keys())
def test_frequencies(parameters, head_dim):
    ours, theirs = configs(parameters, head_dim)
    inv_freq, scale = rotary_frequencies(ours, rope_of(ours), 512)
    if parameters["rope_type"] == "default":
        expected, expected_scale = LlamaRotaryEmbedding.compute_default_rope_parameters(theirs)
    else:
        expected, expected_scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](theirs, None, seq_len=512)
    torch.testing.assert_close(inv_freq, expected, atol=0, rtol=1e-6)
    assert scale == pytest.approx(expected_scale)


@pytest.mark.parametrize("max_model_len", [100, 512, 1500])
def test_dynamic_is_fixed_for_the_longest_sequence(max_model_len):
    ours, theirs = configs(KINDS["dynamic"])
    inv_freq, _ = rotary_frequencies(ours, rope_of(ours), max_model_len)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](theirs, None, seq_len=max_model_len)
    torch.testing.assert_close(inv_freq, expected, atol=0, rtol=1e-6)
    plain, _ = configs(KINDS["default"] | {"rope_theta": 10000.0})
    unstretched, _ = rotary_frequencies(plain, rope_of(plain), max_model_len)
    assert torch.equal(inv_freq, unstretched) == (max_model_len <= 512)


@pytest.mark.parametrize("parameters", KINDS.values(), ids=KINDS.keys())
def test_table(parameters):
    ours, theirs = configs(parameters)
    rotary = Rotary(ours, rope_of(ours), 512)
    cos, sin = LlamaRotaryEmbedding(theirs)(torch.zeros(1), torch.arange(512)[None])
    expected = torch.cat((cos[0, :, :32], sin[0, :, :32]), dim=-1)
    torch.testing.assert_close(rotary.cos_sin_cache, expected, atol=1e-5, rtol=1e-5)
    assert rotary.cos_sin_cache.shape == (512, 64)


def test_the_table_is_real_even_under_a_meta_default():
    ours, _ = configs(KINDS["yarn"])
    with torch.device("meta"):
        rotary = Rotary(ours, rope_of(ours), 8)
    assert rotary.cos_sin_cache.device.type == "cpu" and not rotary.state_dict()


def test_yarn_without_a_factor_stretches_to_the_configured_length():
    parameters = {key: value for key, value in KINDS["yarn"].items() if key != "factor"}
    ours, _ = configs(KINDS["yarn"])
    data = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "hidden_size": 128, "num_hidden_layers": 1,
        "intermediate_size": 8, "num_attention_heads": 2, "max_position_embeddings": 512,
    }  # fmt: skip
    assert rope_of(ModelConfig.from_dict({**data, "rope_parameters": parameters})) == rope_of(ours)
    with pytest.raises(ModelLoadError, match="partial_rotary_factor 0.5"):
        ModelConfig.from_dict({**data, "rope_parameters": {"partial_rotary_factor": 0.5}})
    with pytest.raises(ModelLoadError, match="low_freq_factor"):
        ModelConfig.from_dict({**data, "rope_parameters": {"rope_type": "llama3", "low_freq_factor": 4.5}})
    with pytest.raises(ModelLoadError, match="attention_factor"):
        ModelConfig.from_dict({**data, "rope_parameters": KINDS["yarn"] | {"attention_factor": "big"}})


def test_the_table_covers_the_wanted_length_only(monkeypatch):
    """Ten million positions of a config cost nothing where the engine serves 100; and slabs make the same table."""
    ours, _ = configs(KINDS["default"], max_len=10_485_760)
    whole = Rotary(ours, rope_of(ours), 100).cos_sin_cache
    assert whole.shape == (100, 64)
    monkeypatch.setattr("lullm.nn.rotary._SLAB", 7)
    assert torch.equal(Rotary(ours, rope_of(ours), 100).cos_sin_cache, whole)


def test_a_head_of_one_pair_has_no_dynamic_rope():
    ours, _ = configs(KINDS["dynamic"], head_dim=2)
    with pytest.raises(ModelLoadError, match="head_dim"):
        Rotary(ours, rope_of(ours), 8)


def test_frequencies_that_are_not_finite():
    ours, _ = configs(KINDS["linear"])
    with pytest.raises(ModelLoadError, match="not finite"):
        Rotary(ours, dataclasses.replace(rope_of(ours), factor=1e-300), 8)


def test_more_positions_than_memory():
    ours, _ = configs(KINDS["default"])
    with pytest.raises(ModelLoadError, match="max_model_len"):
        Rotary(ours, rope_of(ours), 10**15)


def test_a_table_of_planes():
    """Pairs of one axis have the bits of the whole table at its positions; equal positions make the row of a text."""
    ours, _ = configs(KINDS["yarn"], head_dim=16)
    sees = dataclasses.replace(ours, vision=SimpleNamespace(axes=(0, 0, 1, 1, 1, 2, 2, 2)))
    rotary = Rotary(sees, rope_of(ours), 100)
    planes = torch.randint(100, (3, 40), generator=torch.Generator().manual_seed(0))
    planes[:, :10] = planes[0, :10]
    table = rotary(planes)
    assert table.shape == (40, 16) and table.is_contiguous()
    whole = rotary(None)
    assert torch.equal(table[:10], whole[planes[0, :10]])
    for axis, pairs in enumerate(((0, 2), (2, 5), (5, 8))):
        for first in (0, 8):
            columns = slice(first + pairs[0], first + pairs[1])
            assert torch.equal(table[:, columns], whole[planes[axis], columns])
