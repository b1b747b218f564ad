"""A whole engine on a GPU: whatever is switched on or off, the tokens are the same. Run by `make gpu-check`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from kit.engine.parts import block_space_of
from kit.engine.prompts import random_prompts
from kit.model.decisive import decisive_answers
from transformers import AutoModelForCausalLM

from lullm import LLM, SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

GPU = {
    "device": "cuda",
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 8,
    "num_gpu_blocks_override": 400,
    "swap_space": 0.01,
}


def mixed_params(num: int) -> list[SamplingParams]:
    kinds = [
        {"temperature": 0.0, "ignore_eos": True},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 10, "n": 2},
        {"temperature": 0.8, "presence_penalty": 0.5},
        {"temperature": 0.7, "min_p": 0.05, "logprobs": 2},
        {"temperature": 1.2, "stop_token_ids": list(range(3, 60))},
    ]
    return [SamplingParams(max_tokens=24, seed=i, **kinds[i % len(kinds)]) for i in range(num)]


def answers(folder, prompts, params, **options):
    with LLM(str(folder), **{**GPU, **options}) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        block_space_of(llm).check_conservation()
        stats = llm.llm_engine.stats()
    return [[(c.token_ids, c.finish_reason) for c in output.outputs] for output in outputs], stats


def answers_one_by_one(folder, prompts, params, **options):
    """One prompt at a time, so that every step has the same batch, whatever the options are; bits included."""
    with LLM(str(folder), **{**GPU, "max_num_seqs": 2, **options}) as llm:  # two of `n`: no size of a graph goes unused
        outputs = [llm.generate([p], [q], use_tqdm=False)[0] for p, q in zip(prompts, params, strict=True)]
        block_space_of(llm).check_conservation()
    return [[(c.token_ids, c.cumulative_logprob, c.finish_reason) for c in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def decisive(qwen3_folder):
    """Prompts whose greedy answers do not hang on rounding, and the CPU's answers."""
    return decisive_answers(str(qwen3_folder), 8, 24, dtype="float32", max_model_len=128, device="cpu")


def test_greedy_tokens_equal_transformers(qwen3_folder):
    model = AutoModelForCausalLM.from_pretrained(qwen3_folder, dtype=torch.float32)
    prompts = random_prompts(4, 60, seed=1)
    found, _ = answers(qwen3_folder, prompts, SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True))
    for prompt, [(got, _)] in zip(prompts, found, strict=True):
        with torch.inference_mode():
            whole = model.generate(
                torch.tensor([prompt]), max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        assert got == whole[0, len(prompt) :].tolist()


def test_the_cpu_says_the_same(qwen3_folder, decisive):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    found, _ = answers(qwen3_folder, list(decisive), params)
    assert [tokens for [(tokens, _)] in found] == [answer.token_ids for answer in decisive.values()]


FP8 = {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}


@pytest.mark.parametrize(
    "options",
    [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "float16"}, {"dtype": "bfloat16", **FP8}],
    ids=str,
)
def test_graphs_change_no_bit(qwen3_folder, options):
    prompts, params = random_prompts(6, 60, seed=2), mixed_params(6)
    recorded, eager = (
        answers_one_by_one(qwen3_folder, prompts, params, **options, enforce_eager=is_eager)
        for is_eager in (False, True)
    )
    assert recorded == eager


def test_an_fp8_cache_says_what_it_says_on_a_cpu(qwen3_folder):
    """Mostly: sums in another order let a rounding fall otherwise now and then, and a token after it."""
    prompts, params = random_prompts(8, 60, seed=4), SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    found, _ = answers(qwen3_folder, prompts, params, **FP8)
    expected, _ = answers(qwen3_folder, prompts, params, **FP8, device="cpu")
    pairs = [pair for [(a, _)], [(b, _)] in zip(found, expected, strict=True) for pair in zip(a, b, strict=True)]
    assert sum(a == b for a, b in pairs) > 0.7 * len(pairs)


def test_overlap_changes_nothing(qwen3_folder):
    prompts, params = random_prompts(12, 60, seed=3)[:6], mixed_params(6)
    ahead, not_ahead = (
        answers_one_by_one(qwen3_folder, prompts, params, async_scheduling=is_ahead) for is_ahead in (True, False)
    )
    assert ahead == not_ahead


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preemption_changes_nothing(qwen3_folder, decisive, mode):
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    options = {"num_gpu_blocks_override": 12, "block_size": 8, "preemption_mode": mode, "max_model_len": 96}
    found, stats = answers(qwen3_folder, list(decisive), params, **options)
    assert [tokens for [(tokens, _)] in found] == [answer.token_ids for answer in decisive.values()]
    assert stats.num_preemptions > 0


@contextmanager
def counting_copies(config) -> Iterator[Callable[[], int]]:
    """A function that says how many copies to the device were seen, by the profiler, or by a fake GPU."""
    if (gpu := getattr(config, "fake_cuda", None)) is not None:
        before = len(gpu.copies)
        yield lambda: sum(direction == "to device" for direction, *_ in gpu.copies[before:])
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        yield lambda: sum("HtoD" in event.name for event in profile.events())
        torch.cuda.synchronize()


def test_one_host_to_device_copy_per_decode_step(qwen3_folder, pytestconfig):
    with LLM(str(qwen3_folder), **GPU) as llm:
        engine = llm.llm_engine
        engine.add_request("a", [5, 6, 7], SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
        for _ in range(4):
            engine.step()
        with counting_copies(pytestconfig) as num_copies:
            for _ in range(10):
                engine.step()
        assert 9 <= num_copies() <= 11
