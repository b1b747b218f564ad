"""Linear biases: what the variants in `kit.model.families` do not reach."""

import pytest
import torch
from kit.model.families import CASES
from kit.model.golden import PagedRun, assert_close, golden_logits, load_model, prompt, save_model

from lullm.config.engine import EngineConfig
from lullm.config.family.layer_norm.alibi import alibi_slopes
from lullm.config.model import ModelConfig
from lullm.errors import ConfigError, ModelLoadError
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS

PLAIN = CASES["Bloom"].variants["plain"]


@pytest.mark.parametrize("num_heads", [1, 4, 6, 12, 16, 71, 112])
def test_slopes_are_those_of_transformers(num_heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(alibi_slopes(num_heads)), theirs)


@pytest.mark.parametrize("ops", [TORCH_CPU_OPS, REFERENCE_OPS], ids=lambda ops: ops.name)
def test_positions_of_two_parts(tmp_path, ops):
    """From 256 on both parts of a position count."""
    theirs = save_model(tmp_path, "Bloom", PLAIN)
    token_ids = prompt(1, 600)
    run = PagedRun(load_model(tmp_path, max_model_len=600), ops, 1, max_len=600)
    logits = torch.cat([run.step([(0, token_ids[:300])]), run.step([(0, token_ids[300:])])])
    assert_close(logits, golden_logits(theirs, token_ids))


def test_bfloat16_keeps_positions(tmp_path):
    """As near as transformers in bfloat16, whose biases are rounded to 8 bits."""
    theirs = save_model(tmp_path, "Bloom", PLAIN)
    token_ids = prompt(1, 600)
    truth = golden_logits(theirs, token_ids)
    run = PagedRun(
        load_model(tmp_path, torch.bfloat16, max_model_len=600), TORCH_CPU_OPS, 1, max_len=600, dtype=torch.bfloat16
    )
    found = run.step([(0, token_ids)])
    their_error = (golden_logits(theirs.bfloat16(), token_ids).float() - truth).abs().mean()
    assert (found - truth).abs().mean() < 1.1 * their_error


def test_caches_that_hold_no_positions_are_refused(tmp_path):
    save_model(tmp_path, "Bloom", PLAIN)
    model = ModelConfig.from_folder(tmp_path)
    for options in ({"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "fp8"}):
        with pytest.raises(ConfigError, match="is not there for BloomForCausalLM, which keeps positions beside its k"):
            EngineConfig(**options).resolve(model)
    with pytest.raises(ModelLoadError, match="more than 65536 positions are not supported with alibi"):
        ModelConfig.from_dict(
            {"architectures": ["BloomForCausalLM"], "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 9}
            | {"seq_length": 65537}
        )
