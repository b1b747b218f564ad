"""What people download: files as published are computed as by transformers, or refused with what to do.

Every file is read as it stands. At toy size each is also computed by an engine, from tensors under the names that the
repository has: greedily, every token is the best one by transformers.
"""

import json
import random

import pytest
import torch
from kit.folder.checkpoint import write_tokenizer
from kit.published import PUBLISHED
from kit.published.reference import reference_model, save_as_published
from kit.published.shrink import shrink

from lullm import LLM, SamplingParams
from lullm.config.engine import EngineConfig
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.models.fallback.choice import read_model_config

REFUSED = {
    "moonshotai/Kimi-K2.5": "reads more than text.*choose a checkpoint of the text model alone",
}
OWN = [name for name in PUBLISHED if name not in REFUSED]
WARNED = {"Qwen/Qwen2.5-7B-Instruct-1M": ("dual_chunk_attention_config",)}
"""Keys that a warning names: the chunks begin behind 262,144 tokens, and transformers has none."""
QUICK = {
    "CohereForAI/c4ai-command-r7b-12-2024", "EleutherAI/gpt-neox-20b", "EleutherAI/pythia-160m",
    "HuggingFaceTB/SmolLM3-3B", "LiquidAI/LFM2-1.2B", "NousResearch/Yarn-Llama-2-7b-64k",
    "Qwen/Qwen2.5-7B-Instruct, as its card stretches it", "Qwen/Qwen2.5-VL-3B-Instruct", "Qwen/Qwen3-0.6B",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-Embedding-0.6B", "allenai/Olmo-3-7B-Instruct",
    "bigcode/starcoder2-3b", "facebook/opt-125m", "google/gemma-2-27b-it", "google/gemma-3-4b-it",
    "huggyllama/llama-7b", "internlm/internlm2-chat-7b", "meta-llama/Llama-3.1-8B-Instruct",
    "microsoft/Phi-3-mini-128k-instruct, first revision",
    "microsoft/Phi-4-mini-instruct", "mistralai/Mistral-7B-v0.1", "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "openai-community/gpt2", "openai/gpt-oss-20b", "tencent/Hunyuan-0.5B-Instruct", "unsloth/DeepSeek-V3-bf16",
    "zai-org/GLM-4.5-Air",
}  # fmt: skip
"""One of each kind; the others run with the slow tests."""


def listed(value):
    return () if value is None else tuple(value) if isinstance(value, list) else (value,)


@pytest.mark.parametrize("name", OWN)
def test_a_published_file_is_read_as_it_stands(name):
    data = PUBLISHED[name]
    config = ModelConfig.from_dict(data)
    assert config.unknown_keys == WARNED.get(name, ()), "a harmless key is known, so that a warning means something"
    assert config.eos_token_ids == listed(data.get("eos_token_id"))
    assert config.dtype == (data.get("torch_dtype") or data.get("dtype") or config.dtype)
    quantized = data.get("quantization_config", {}).get("quant_method")
    if quantized != "mxfp4":  # the family's own, for its experts alone
        assert (config.encoding.method if config.encoding else None) == quantized


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_do(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name]))
    with pytest.raises(ModelLoadError, match=REFUSED[name]):
        read_model_config(tmp_path, "auto")


def of_time(name):
    return pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)


@pytest.mark.parametrize("name", [of_time(name) for name in OWN])
def test_greedy_tokens_are_transformers(tmp_path, name):
    small = {key: value for key, value in shrink(PUBLISHED[name]).items() if key != "quantization_config"}
    model = reference_model(name, small)
    save_as_published(model, name, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(small))
    write_tokenizer(tmp_path)
    assert read_model_config(tmp_path, "auto").foreign is None
    rng = random.Random(0)
    prompts = [[rng.randrange(4, 300) for _ in range(length)] for length in (20, 27, 33, 21)]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(tmp_path), dtype="float32", max_model_len=48, block_size=8) as llm:
        answers = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    seen = set()
    for prompt, tokens in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0]
        logits = logits[len(prompt) - 1 : -1]
        lost = logits.amax(-1) - logits[range(8), tokens]
        assert lost.max() < 1e-3 * logits.std(), "another token is better by more than rounding"
        seen.update(tokens)
    assert len(seen) > 3, "a model that says something"


STRETCHED = {
    "Qwen/Qwen2.5-7B-Instruct, as its card stretches it": 131072,
    "Qwen/Qwen3-4B, as its card stretches it": 131072,
    "lmsys/vicuna-7b-v1.5-16k": 16384,
    "unsloth/DeepSeek-V3-bf16": 163840,
    "meta-llama/Llama-3.1-8B-Instruct": 131072,
    "mistralai/Mistral-7B-v0.1": 32768,
}


@pytest.mark.parametrize("name", STRETCHED)
def test_a_rope_may_be_longer_than_the_positions_of_the_file(name):
    """`max_model_len` of 131072 was refused for Qwen 2.5 and 3 with YaRN, which leaves the positions at 32768."""
    from lullm.errors import ConfigError

    model = ModelConfig.from_dict(PUBLISHED[name])
    longest = STRETCHED[name]
    assert EngineConfig(max_model_len=longest).resolve(model).max_model_len == longest
    assert EngineConfig().resolve(model).max_model_len == model.max_position_embeddings, "what the file says"
    with pytest.raises(ConfigError, match=f"above the model's {longest} positions"):
        EngineConfig(max_model_len=longest + 1).resolve(model)
