"""Quantized checkpoints that people download: a published `quantization_config` runs, or is refused with what to do."""

import json

import pytest
import torch
from kit.folder import quantized
from kit.folder.checkpoint import write_tokenizer
from kit.model.golden import SIZES, save_model
from kit.published.quantization import REFUSED, RUNS

from lullm import LLM, SamplingParams
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError

WIDE = SIZES | {
    "hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4, "head_dim": 32, "num_hidden_layers": 2,
    "vocab_size": 320,
}  # fmt: skip
"""For groups and blocks of 128."""
PROMPT = [(7 * i) % 300 + 3 for i in range(60)]
SCORED = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    save_model(folder, "Llama", WIDE)
    write_tokenizer(folder)
    return folder


def scores(folder):
    """The log-probabilities of the prompt's tokens."""
    with LLM(str(folder), dtype="float32", max_model_len=64, block_size=8) as llm:
        [output] = llm.generate([PROMPT], SCORED, use_tqdm=False)
    return torch.tensor(
        [entry[token].logprob for entry, token in zip(output.prompt_logprobs[1:], PROMPT[1:], strict=True)]
    )


@pytest.mark.parametrize("name", RUNS)
def test_as_the_decoded_checkpoint(source, tmp_path, caplog, name):
    """Products with integers of 8 and 4 bits round activations to 16 bits."""
    block, make_encode = RUNS[name]
    quantized.write(source, tmp_path / "stored", tmp_path / "dense", lambda: (block, make_encode()))
    found, expected, original = scores(tmp_path / "stored"), scores(tmp_path / "dense"), scores(source)
    assert "nothing is known about them" not in caplog.text, "no key of a publisher is unknown"
    assert (found - expected).abs().max() < 3e-3
    assert (found - original).abs().max() > 1e-2, "it is quantized"


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(source, tmp_path, name):
    block, message = REFUSED[name]
    data = json.loads((source / "config.json").read_text()) | {"quantization_config": block}
    (tmp_path / "config.json").write_text(json.dumps(data))
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_folder(tmp_path)


def test_what_modelopt_says_in_a_file_of_its_own(source, tmp_path):
    """Copies of 2024 and 2025 leave config.json as it was."""
    quantized.write(source, tmp_path / "stored", tmp_path / "dense", quantized.modelopt)
    path = tmp_path / "stored" / "config.json"
    data = json.loads(path.read_text())
    stated = data.pop("quantization_config")
    path.write_text(json.dumps(data))
    own = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": stated["ignore"]}
    (path.parent / "hf_quant_config.json").write_text(json.dumps({"producer": {}, "quantization": own}))
    assert ModelConfig.from_folder(path.parent).encoding.method == "modelopt"
    assert (scores(path.parent) - scores(tmp_path / "dense")).abs().max() < 3e-3
