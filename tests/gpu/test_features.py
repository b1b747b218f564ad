"""What changes how a token is computed, on a GPU: adapters, pictures, guesses, guided output, a fleet behind a server.

Tokens are the CPU's. Run by `make gpu-check GPU_CHECK="--only feature-tests"`.
"""

import json
import os
import signal
import sys
import urllib.request

import pytest
import torch
from kit.engine.prompts import random_prompts
from kit.folder.draft import write_draft
from kit.model.lora import write_adapter
from kit.running import running

from lullm import LLM, LoRARequest, SamplingParams
from lullm.types.guided.params import StructuredOutputsParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

OPTIONS = {"dtype": "float32", "max_model_len": 256, "block_size": 16, "num_gpu_blocks_override": 160, "swap_space": 0}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = random_prompts(6, 30)


def generate(llm, prompts=PROMPTS, params=GREEDY, **more):
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False, **more)]


def both(folder, generate=generate, on_gpu=(), **options):
    """(the CPU's tokens, the GPU's, its stats); behind a sleep they are the same. `on_gpu`: options of the GPU only."""
    with LLM(str(folder), device="cpu", **OPTIONS, **options) as llm:
        expected = generate(llm)
    with LLM(str(folder), device="cuda", enable_sleep_mode=True, **OPTIONS, **{**options, **dict(on_gpu)}) as llm:
        found = generate(llm)
        stats = llm.llm_engine.stats()
        llm.sleep(1)
        llm.wake_up()
        assert generate(llm) == found
    return expected, found, stats


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_adapters(qwen3_folder, tmp_path, enforce_eager):
    loras = [
        LoRARequest(f"a{n}", n, str(write_adapter(tmp_path / f"a{n}", qwen3_folder, seed=n, rank=4 * n)))
        for n in (1, 2)
    ]
    each = [*loras, None] * 2
    expected, found, _ = both(
        qwen3_folder, lambda llm: generate(llm, lora_request=each), {"enforce_eager": enforce_eager},
        enable_lora=True, max_loras=2, max_lora_rank=8,
    )  # fmt: skip
    assert found == expected


def test_pictures(tmp_path):
    from kit.vision.checkpoint import picture, write_llava

    shown = [
        {"prompt": "USER: <image>\nwhat fox? ASSISTANT:", "multi_modal_data": {"image": [picture(61, 40)]}},
        {"prompt": "hello world, the quick"},
    ]
    folder = write_llava(tmp_path / "llava").folder
    expected, found, _ = both(folder, lambda llm: generate(llm, shown))
    assert found == expected


@pytest.mark.parametrize("guesses", ["draft", "ngram"])
def test_guesses(qwen3_folder, tmp_path, guesses):
    config = {"num_speculative_tokens": 3, "adaptive": False}
    if guesses == "draft":
        config["model"] = str(write_draft(qwen3_folder, tmp_path / "draft", noise=0.02))
    else:
        config["method"] = "ngram"
    expected, found, stats = both(qwen3_folder, on_gpu={"speculative_config": config})
    assert found == expected
    assert guesses == "ngram" or stats.accepted_tokens_total > 0


def test_a_choice_is_kept(qwen3_folder):
    params = SamplingParams(max_tokens=12, seed=1, structured_outputs=StructuredOutputsParams(choice=["hello", "fox"]))
    expected, found, _ = both(qwen3_folder, lambda llm: generate(llm, params=params))
    assert found == expected


@pytest.mark.skipif("fake_cuda" in sys.modules, reason="another process has no fake GPU")
def test_two_models_behind_one_server(qwen3_folder, llama_folder):
    """One sleeps while the other answers; the answers are those of the first time, and SIGTERM ends all."""
    command = [sys.executable, "-m", "lullm.cli.main", "serve", f"a={qwen3_folder}", f"b={llama_folder}",
               "--memory-budget", "2GiB", "--device", "cuda", "--dtype", "float32", "--max-model-len", "128",
               "--num-gpu-blocks-override", "64", "--swap-space", "0", "--port", "0"]  # fmt: skip
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "LULLM_DEVICE": "cuda"}
    with running(command, env=environment) as server:
        url = server.stdout.readline().split()[-1]

        def ask(model):
            body = {"model": model, "prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            request = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["choices"][0]["text"]

        first = {model: ask(model) for model in "ab"}
        for model in "abba":
            assert ask(model) == first[model]
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
