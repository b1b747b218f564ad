"""`hf_overrides`: a model whose config.json says something else, without another copy of it."""

import json
import shutil

import pytest
from kit.folder.checkpoint import write_checkpoint

from lullm import LLM, SamplingParams
from lullm.config.engine import EngineConfig
from lullm.config.json_file import overridden
from lullm.config.model import ModelConfig
from lullm.errors import ConfigError, ModelLoadError

YARN = {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGER = {"rope_parameters": YARN, "max_position_embeddings": 256}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"), "qwen3", max_position_embeddings=64)


def tokens(model, **options):
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    with LLM(str(model), **options) as llm:
        return llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("model_impl", ["lullm", "transformers"])
def test_a_longer_context(folder, tmp_path, model_impl):
    """As vLLM's context_extension example; it was refused, and only an edited copy of the folder ran so."""
    edited = tmp_path / "edited"
    shutil.copytree(folder, edited)
    config = json.loads((folder / "config.json").read_text())
    (edited / "config.json").write_text(json.dumps(config | LONGER))
    expected = tokens(edited, model_impl=model_impl)
    assert tokens(folder, model_impl=model_impl, hf_overrides=LONGER) == expected and len(expected) == 100
    assert len(tokens(folder, model_impl=model_impl)) == 64 - 3


def test_a_context_that_is_given_too(folder):
    with LLM(str(folder), hf_overrides=LONGER, max_model_len=200) as llm:
        assert llm.llm_engine.config.max_model_len == 200


def test_parts_are_taken_one_by_one():
    data = {"a": 1, "text_config": {"b": 2, "c": 3}, "rope_parameters": {"rope_type": "default"}}
    found = overridden(data, {"text_config": {"b": 4}, "rope_parameters": {"factor": 2.0}, "d": 5})
    assert found == {"a": 1, "d": 5, "text_config": {"b": 4, "c": 3}, "rope_parameters": {"factor": 2.0}}


def test_wrong_overrides(folder):
    with pytest.raises(ConfigError, match="hf_overrides must be a JSON object"):
        EngineConfig(hf_overrides="[1]")
    with pytest.raises(ConfigError, match="hf_overrides: nothing is known about max_model_len"):
        ModelConfig.from_folder(folder, {"max_model_len": 7})
    with pytest.raises(ModelLoadError, match="hidden_size"):
        ModelConfig.from_folder(folder, {"hidden_size": -1})
    assert EngineConfig.from_options({"hf_overrides": {}}) == EngineConfig()
