"""The headers of weight files against the config: every wrong size by its key, and nothing that fits refused."""

import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.weights.headers import check_headers
from lullm.weights.reading.files import missing_files


@pytest.fixture
def config():
    """`config(**changes)`: of the checkpoint in `conftest`, with changes."""
    sizes = {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64,
    }  # fmt: skip
    return lambda **changes: ModelConfig.from_dict(sizes | changes)


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_what_fits_passes(tmp_path, checkpoint, config, prefix):
    tensors = {name.replace("model.", prefix, 1): tensor for name, tensor in checkpoint.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    check_headers(config(), tmp_path)


def test_shards(tmp_path, checkpoint, config, save_shards):
    shards = save_shards(tmp_path, checkpoint)
    check_headers(config(), tmp_path)
    owned = load_file(shards[0])
    other = next(name for name in checkpoint if name.endswith("q_proj.weight") and name not in owned)
    save_file(owned | {other: torch.zeros(1)}, shards[0])  # the index assigns it to another shard, which wins
    check_headers(config(), tmp_path)
    shards[0].write_bytes(b"")
    with pytest.raises(ModelLoadError, match="damaged"):
        check_headers(config(), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 41}, "vocab_size"),
        ({"hidden_size": 32}, "hidden_size"),
        ({"intermediate_size": 1 << 20}, "intermediate_size"),
        ({"num_hidden_layers": 1000}, "num_hidden_layers is 1000, and the files hold 2"),
        ({"num_attention_heads": 8}, "num_attention_heads x head_dim"),
        ({"num_key_value_heads": 4}, "num_key_value_heads x head_dim"),
        ({"head_dim": 16}, "head_dim"),
    ],
)
def test_each_size_is_named(tmp_path, checkpoint, config, change, message):
    save_file(checkpoint, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=message) as caught:
        check_headers(config(**change), tmp_path)
    assert len(str(caught.value).splitlines()) <= 6, "one line per key, not one per tensor"


def test_a_matrix_that_is_none(tmp_path, checkpoint, config):
    checkpoint["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3)
    save_file(checkpoint, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layers.1.mlp.up_proj.weight has shape \[3\]"):
        check_headers(config(), tmp_path)


def test_a_stored_head_beside_a_tied_one_may_have_any_size(tmp_path, checkpoint, config):
    checkpoint["lm_head.weight"] = torch.zeros(7, 16)
    save_file(checkpoint, tmp_path / "model.safetensors")
    check_headers(config(tie_word_embeddings=True), tmp_path)
    with pytest.raises(ModelLoadError, match="lm_head.weight has shape"):
        check_headers(config(), tmp_path)


def test_a_fifo_is_no_weight_file(tmp_path):
    """Opening it would wait for ever."""
    os.mkfifo(tmp_path / "model.safetensors")
    assert missing_files(tmp_path) == ["model.safetensors"]
