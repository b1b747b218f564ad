"""The config that a GGUF file says: whatever stands under a key, it is a config or an error that says what is wrong."""

from array import array
from pathlib import Path

import pytest

from lullm.config.gguf.architecture import config_data, sampling_data
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
    "attention.key_length": 16, "rope.dimension_count": 16, "attention.sliding_window": 16, "expert_count": 4,
    "expert_used_count": 2, "expert_feed_forward_length": 32, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32, "final_logit_softcapping": 30.0,
}  # fmt: skip
ARCHITECTURES = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "gpt-oss"]
HOSTILE = [
    "x", "", -1, 0, True, 1 << 63, float("nan"), float("inf"), -0.5, 1.5, array("i"), array("i", [4, 4]),
    array("i", [1, 2]),
]  # fmt: skip


def file_of(architecture, **changes):
    keys = {
        key: value for key, value in SIZES.items() if "expert" not in key or architecture in ("qwen3moe", "gpt-oss")
    }
    metadata = {"general.architecture": architecture, "tokenizer.ggml.eos_token_id": 1}
    metadata |= {f"{architecture}.{key}": value for key, value in (keys | changes).items()}
    place = TensorPlace("token_embd.weight", (320, 64), FORMATS[0], PATH, 0)
    return GGUFFile(PATH, metadata, {place.name: place})


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_any_value_under_any_key(architecture):
    whole = ModelConfig.from_dict(config_data(file_of(architecture)))
    assert (whole.hidden_size, whole.num_hidden_layers, whole.vocab_size) == (64, 2, 320)
    assert whole.eos_token_ids == (1,) and whole.tie_word_embeddings
    num_refused = 0
    for key in SIZES:
        for value in HOSTILE:
            try:
                ModelConfig.from_dict(config_data(file_of(architecture, **{key: value})))
            except ModelLoadError:
                num_refused += 1
    assert num_refused > 80


def test_what_changes_the_arithmetic_is_refused():
    wrong = {"attention.clamp_kqv": 8.0, "residual_scale": 0.5, "expert_shared_count": 1, "use_parallel_residual": True}
    for key, value in wrong.items():
        with pytest.raises(ModelLoadError, match=f"{key} .*not implemented for qwen3"):
            config_data(file_of("qwen3", **{key: value}))
    config_data(file_of("qwen3", expert_shared_count=0, embedding_scale=1.0))
    with pytest.raises(ModelLoadError, match="llama with experts is not supported"):
        config_data(file_of("llama", expert_count=8))
    with pytest.raises(ModelLoadError, match="the architecture 'rwkv7' is not supported; known are: gemma2"):
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
