"""Workers that share a quantized checkpoint: each has its part of the very integers that are stored."""

import gguf
import pytest
from kit.engine.prompts import random_prompts
from kit.folder import quantized
from kit.folder.checkpoint import write_checkpoint
from kit.folder.gguf_files import write_gguf
from kit.folder.quantized import FORMATS
from kit.worker.threads import use_threads

from lullm import LLM, SamplingParams
from lullm.errors import ModelLoadError

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
PARAMS = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
PROMPTS = random_prompts(2, 60)


def prompt_logprobs(folder, **options):
    with LLM(str(folder), **OPTIONS | options) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [entry.logprob for output in outputs for at in output.prompt_logprobs[1:] for entry in at.values()]


def compare(folder, monkeypatch):
    """Activations of 16 bits have a scale per worker's part of a row."""
    expected = prompt_logprobs(folder)
    use_threads(monkeypatch)
    assert prompt_logprobs(folder, tensor_parallel_size=2) == pytest.approx(expected, abs=2e-3, rel=1e-3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Half of its inputs are whole groups of 32, and whole spans of 256."""
    sizes = {"hidden_size": 64, "intermediate_size": 512, "num_hidden_layers": 1}
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", **sizes)


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory):
    """For blocks of 256 inputs."""
    sizes = {"hidden_size": 256, "head_dim": 128, "intermediate_size": 512, "num_hidden_layers": 1}
    return write_checkpoint(tmp_path_factory.mktemp("wide"), "qwen3", **sizes)


@pytest.mark.parametrize(
    "name",
    ["w8a8", "w4a16", "w4a16 channel", "w4a16 asymmetric", "awq", "gptq act-order", "gptq 8 bits symmetric"]
    + ["fp8 blocks", "fp8 of Qwen"],
)
def test_checkpoints(folder, tmp_path, monkeypatch, name):
    quantized.write(folder, tmp_path / "q", tmp_path / "dense", FORMATS[name], [])
    compare(tmp_path / "q", monkeypatch)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K"])
def test_gguf(wide_folder, tmp_path, monkeypatch, kind):
    write_gguf(tmp_path / "model.gguf", wide_folder, "Qwen3", gguf.GGMLQuantizationType[kind])
    compare(tmp_path / "model.gguf", monkeypatch)


def test_a_span_that_four_workers_would_cut(wide_folder, tmp_path, monkeypatch):
    """Q4_K has factors of 256 inputs, of which each of four workers would have the half."""
    use_threads(monkeypatch)
    write_gguf(tmp_path / "model.gguf", wide_folder, "Qwen3", gguf.GGMLQuantizationType.Q4_K)
    with pytest.raises(ModelLoadError, match="cut one of its groups of 256.*pipeline_parallel_size"):
        LLM(str(tmp_path / "model.gguf"), **OPTIONS, tensor_parallel_size=4)
