"""The config that a GGUF file says: whatever stands under a key, it is a config or an error that says what is wrong."""

from array import array
from pathlib import Path

import pytest

from lullm.config.gguf.architecture import _ARCHITECTURES, config_data, sampling_data
from lullm.config.gguf.file import GGUFFile
from lullm.config.gguf.format import FORMATS
from lullm.config.gguf.header import TensorPlace
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError

PATH = Path("model.gguf")
SIZES = {
    "context_length": 128, "embedding_length": 64, "block_count": 2, "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0,
    "attention.key_length": 16, "rope.dimension_count": 16, "attention.sliding_window": 16,
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32, "final_logit_softcapping": 30.0,
}  # fmt: skip
HOSTILE = [
    "x", "", -1, 0, True, 1 << 63, float("nan"), float("inf"), -0.5, 1.5, array("i"), array("i", [4, 4]),
    array("i", [1, 2]),
]  # fmt: skip


LAYER_NORMS = {"attention.layer_norm_epsilon": 1e-5}
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
GROUPED = EXPERTS | {
    "expert_shared_count": 1, "leading_dense_block_count": 1, "expert_weights_scale": 1.5, "expert_weights_norm": True,
    "expert_group_count": 2, "expert_group_used_count": 1, "expert_gating_func": 2,
}  # fmt: skip
SPACE = {
    "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 128,
}  # fmt: skip
VECTORS = {"pooling_type": 1, "attention.causal": False}
MORE = {
    "bert": VECTORS, "gemma-embedding": VECTORS, "nomic-bert": VECTORS,
    "modern-bert": VECTORS | {
        "rope.scaling.type": "none", "rope.freq_base_swa": 1000.0, "classifier.pooling_type": 2,
        "hidden_activation": "silu", "attention.sliding_window_pattern": 3,
    },
    "cohere2": {"logit_scale": 0.5}, "command-r": {"logit_scale": 0.5},
    "dots1": GROUPED, "glm4moe": GROUPED | {"nextn_predict_layers": 1},
    "ernie4_5-moe": EXPERTS | {"expert_shared_count": 2, "interleave_moe_layer_step": 1},
    "granite": {"attention.scale": 0.5, "embedding_scale": 2.0, "residual_scale": 0.5, "logit_scale": 2.0},
    "deepseek2": GROUPED | {
        "attention.kv_lora_rank": 24, "attention.key_length_mla": 24, "attention.value_length_mla": 16,
        "attention.q_lora_rank": 12, "rope.scaling.yarn_log_multiplier": 0.1,
    },
    "granitehybrid": EXPERTS | SPACE | {"attention.head_count_kv": array("i", [0, 2])},
    "nemotron_h": SPACE
    | {"attention.head_count_kv": array("i", [0, 2]), "feed_forward_length": array("i", [96, 0])},
    "nemotron_h_moe": SPACE | GROUPED | {
        "attention.head_count_kv": array("i", [0, 2]), "feed_forward_length": array("i", [96, 0]),
        "expert_shared_feed_forward_length": 40, "leading_dense_block_count": 0, "expert_group_count": 1,
    },
    "qwen35": SPACE | {"full_attention_interval": 2},
    "qwen35moe": EXPERTS | SPACE | {"expert_shared_feed_forward_length": 32, "full_attention_interval": 2},
    "qwen3next": EXPERTS | SPACE | {"expert_shared_feed_forward_length": 32, "full_attention_interval": 2},
    "granitemoe": EXPERTS | {"attention.scale": 0.5, "expert_shared_feed_forward_length": 32},
    "lfm2": {"attention.head_count_kv": array("i", [0, 2]), "shortconv.l_cache": 3},
    "lfm2moe": EXPERTS | {"attention.head_count_kv": array("i", [0, 2]), "shortconv.l_cache": 3},
    "mistral3": {"attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0},
    "gemma4": EXPERTS | {
        "attention.key_length": 32, "attention.key_length_swa": 16, "attention.shared_kv_layers": 0,
        "attention.sliding_window_pattern": array("B", [1, 0]), "embedding_length_per_layer_input": 0,
        "rope.freq_base_swa": 1000.0, "rope.dimension_count_swa": 16, "rope.scaling.type": "none",
    },
    "apertus": {"rope.scaling.type": "none"},
    "exaone-moe": GROUPED,
    "kimi-linear": GROUPED | {
        "attention.kv_lora_rank": 24, "attention.key_length_mla": 24, "attention.value_length_mla": 16,
        "attention.head_count_kv": array("i", [0, 1]), "kda.head_dim": 16, "ssm.conv_kernel": 4,
    },
    "falcon-h1": SPACE,
    "gemma3n": {
        "activation_sparsity_scale": array("f", [1.6, float("-inf")]), "altup.num_inputs": 3, "altup.active_idx": 1,
        "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 8, "rope.scaling.type": "none",
        "attention.sliding_window_pattern": array("B", [1, 0]),
    },
    "gptneox": {"use_parallel_residual": True},
    "jamba": EXPERTS | SPACE | {"attention.head_count_kv": array("i", [0, 2])},
    "hunyuan-moe": EXPERTS | {"expert_shared_count": 1, "feed_forward_length": 32},
    "llama4": EXPERTS | {"interleave_moe_layer_step": 1, "rope.scaling.type": "none"},
    "mamba": SPACE | {"ssm.dt_b_c_rms": True},
    "mamba2": SPACE,
    "minicpm": {"embedding_scale": 2.0, "residual_scale": 0.5, "logit_scale": 2.0},
    "mpt": {"attention.max_alibi_bias": 8.0},
    "starcoder": {"attention.head_count_kv": 1},
    "olmo2": {"attention.sliding_window_pattern": array("B", [1, 0])},
    "qwen2moe": EXPERTS | {"expert_shared_feed_forward_length": 32},
}  # fmt: skip
"""What some architectures say beside `SIZES`."""
BY_MEAN = (
    "bert", "bloom", "cohere2", "command-r", "falcon", "gpt2", "gptneox", "modern-bert", "mpt", "nemotron",
    "nomic-bert", "olmo", "phi2", "stablelm", "starcoder", "starcoder2",
)  # fmt: skip
WITH_EXPERTS = ("gpt-oss", "minimax-m2", "olmoe", "qwen3moe", "qwen3vlmoe")


def keys_of(architecture):
    keys = SIZES | (EXPERTS if architecture in WITH_EXPERTS else {}) | MORE.get(architecture, {})
    if architecture in BY_MEAN:
        keys = LAYER_NORMS | {key: value for key, value in keys.items() if "rms" not in key}
    if architecture in ("bloom", "gpt2", "jamba", "mamba", "mamba2", "mpt", "starcoder"):
        keys = {key: value for key, value in keys.items() if not key.startswith("rope.")}
    if architecture.startswith("mamba"):
        keys = {key: value for key, value in keys.items() if "head" not in key and key != "attention.key_length"}
    return keys


@pytest.fixture(autouse=True)
def frequencies(monkeypatch):
    """Of the tensor `rope_freqs`, which no file here holds."""
    monkeypatch.setattr("lullm.config.gguf.keys.read_floats", lambda place: [1.0, 1.0, 1e30, 1e30])


def file_of(architecture, **changes):
    metadata = {"general.architecture": architecture, "tokenizer.ggml.eos_token_id": 1}
    metadata |= {f"{architecture}.{key}": value for key, value in (keys_of(architecture) | changes).items()}
    shapes = {"token_embd.weight": (320, 64), "position_embd.weight": (128, 64)}
    shapes |= {"rope_freqs.weight": (4,)} if architecture == "gemma4" else {}
    if architecture == "gemma3n":
        shapes |= {"blk.0.laurel_l.weight": (12, 64), "per_layer_token_embd.weight": (320, 16)}
    return GGUFFile(
        PATH, metadata, {name: TensorPlace(name, shape, FORMATS[0], PATH, 0) for name, shape in shapes.items()}
    )


@pytest.mark.parametrize("architecture", sorted(_ARCHITECTURES))
def test_any_value_under_any_key(architecture):
    whole = ModelConfig.from_dict(config_data(file_of(architecture)))
    assert (whole.hidden_size, whole.vocab_size) == (64, 320)
    assert whole.num_hidden_layers == 2 - ("nextn_predict_layers" in keys_of(architecture))
    assert whole.eos_token_ids == (1,)
    assert whole.tie_word_embeddings == (not architecture.startswith("nemotron_h")), "which has a head of its own"
    num_refused = 0
    for key in keys_of(architecture):
        for value in HOSTILE:
            try:
                ModelConfig.from_dict(config_data(file_of(architecture, **{key: value})))
            except ModelLoadError:
                num_refused += 1
    assert num_refused > 50


def test_what_changes_the_arithmetic_is_refused():
    wrong = {"attention.clamp_kqv": 8.0, "residual_scale": 0.5, "expert_shared_count": 1, "use_parallel_residual": True}
    for key, value in wrong.items():
        with pytest.raises(ModelLoadError, match=f"{key} .*not implemented for qwen3"):
            config_data(file_of("qwen3", **{key: value}))
    config_data(file_of("qwen3", expert_shared_count=0, embedding_scale=1.0))
    with pytest.raises(ModelLoadError, match="qwen2 with experts is not supported"):
        config_data(file_of("qwen2", expert_count=8))
    with pytest.raises(ModelLoadError, match="expert_weights_norm False is not supported for qwen3moe, only True"):
        config_data(file_of("qwen3moe", expert_weights_norm=False))
    with pytest.raises(ModelLoadError, match="'rwkv7' is not supported in GGUF; take the folder .* or one of: apertus"):
        config_data(file_of("rwkv7"))
    with pytest.raises(ModelLoadError, match="rope.dimension_count 8 is not supported, only 16"):
        config_data(file_of("llama", **{"rope.dimension_count": 8}))


def test_a_missing_key_is_named():
    file = file_of("qwen3")
    del file.metadata["qwen3.block_count"]
    with pytest.raises(ModelLoadError, match="qwen3.block_count is missing"):
        config_data(file)
    with pytest.raises(ModelLoadError, match="no general.architecture"):
        config_data(GGUFFile(PATH, {}, {}))


def test_sampling():
    file = GGUFFile(PATH, {"general.sampling.temp": 0.6000000238418579, "general.sampling.top_k": 20}, {})
    found = {key: value for key, value in sampling_data(file).items() if value is not None}
    assert found == {"temperature": 0.6, "top_k": 20}
