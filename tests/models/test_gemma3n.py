"""Gemma 3n: what its variants in `kit.model.families` do not reach."""

import pytest
from kit.model.families import CASES
from kit.model.golden import PagedRun, assert_close, golden_logits, load_model, prompt, save_model

from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.errors import ConfigError
from lullm.ops.selection import REFERENCE_OPS

PLAIN = CASES["Gemma3n"].variants["plain"]


def test_tokens_behind_those_that_layers_embed(tmp_path):
    """Of pictures and sounds: 262,144 and more. Their rows would lie outside of the table."""
    theirs = save_model(tmp_path, "Gemma3n", PLAIN)
    token_ids = [101, 130, *prompt(1, 20)]
    assert max(token_ids) >= PLAIN["vocab_size_per_layer_input"]
    run = PagedRun(load_model(tmp_path), REFERENCE_OPS, 1)
    assert_close(run.step([(0, token_ids)]), golden_logits(theirs, token_ids))


def test_what_torch_joins_follows_the_batch(tmp_path):
    save_model(tmp_path, "Gemma3n", PLAIN)
    model = ModelConfig.from_folder(tmp_path)
    assert EngineConfig(kv_cache_dtype="fp8", quantization="int8").resolve(model).quantization == "int8"
    with pytest.raises(ConfigError, match="batch_invariant=True is not there for Gemma3n.*joins residual streams"):
        EngineConfig(batch_invariant=True).resolve(model)


def test_a_stage_takes_all_streams(tmp_path):
    save_model(tmp_path, "Gemma3n", PLAIN)
    assert ModelConfig.from_folder(tmp_path).stream_size == 4 * 48
