"""Layers with a window of 32 tokens between layers that see all: the tokens of transformers, in fewer blocks."""

import random

import pytest
import torch
from engine_parts import kv_caches_of, use_ops
from transformers import AutoModelForCausalLM

from lullm import LLM, SamplingParams
from lullm.errors import CacheSizeError
from lullm.ops.selection import REFERENCE_OPS

BLOCK_SIZE = 8
OPTIONS = {"dtype": "float32", "max_model_len": 256, "block_size": BLOCK_SIZE}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
MOST = 30 + 2 * 5
"""Blocks of a sequence of 240 tokens: all of them in the one full group, those of the window in the two others."""


def make_prompts() -> list[list[int]]:
    """Four of 8 tokens, which grow, then six of 185 to 200, every second one of them with a common start of 120."""
    rng = random.Random(0)
    shared = [rng.randrange(3, 300) for _ in range(120)]
    short = [[rng.randrange(3, 300) for _ in range(8)] for _ in range(4)]
    return short + [
        (shared if i % 2 else [rng.randrange(3, 300) for _ in range(120)])
        + [rng.randrange(3, 300) for _ in range(80 - 3 * i)]
        for i in range(6)
    ]


def tokens(llm: LLM, prompts: list[list[int]], params: SamplingParams = GREEDY):
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def expected(mixed_folder):
    model = AutoModelForCausalLM.from_pretrained(mixed_folder, dtype=torch.float32)
    found = []
    for prompt in make_prompts():
        with torch.inference_mode():
            whole = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=GREEDY.max_tokens, do_sample=False, eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
        found.append([whole[0, len(prompt) :].tolist()])
    return found


@pytest.mark.parametrize("chunk", [7, 64, 2048])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_greedy_tokens_equal_transformers(mixed_folder, expected, chunk, enable_prefix_caching):
    with LLM(
        str(mixed_folder), **OPTIONS, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 8),
        enable_prefix_caching=enable_prefix_caching, num_gpu_blocks_override=700,
    ) as llm:  # fmt: skip
        assert len(kv_caches_of(llm)) == 2, "six layers stand in the two slots of a block"
        assert tokens(llm, make_prompts()) == expected
        if enable_prefix_caching:
            hits = llm.llm_engine.stats().prefix_cache_hits_total
            assert tokens(llm, make_prompts()) == expected, "with every prompt in the cache"
            assert llm.llm_engine.stats().prefix_cache_hits_total >= hits + 6 * 184


def test_the_reference_gives_the_same(mixed_folder, expected, monkeypatch):
    use_ops(monkeypatch, REFERENCE_OPS)
    with LLM(str(mixed_folder), **OPTIONS, max_num_batched_tokens=64, max_num_seqs=8) as llm:
        assert tokens(llm, make_prompts()[2:7]) == expected[2:7]


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_a_small_cache_is_as_exact_as_with_one_group(mixed_folder, kv_cache_dtype):
    """Other ways to the same tokens: whole prompts, and chunks with preemption."""
    options = {**OPTIONS, "kv_cache_dtype": kv_cache_dtype}
    with LLM(str(mixed_folder), **options) as llm:
        roomy = tokens(llm, make_prompts())
    with LLM(
        str(mixed_folder), **options, num_gpu_blocks_override=MOST + 4, max_num_batched_tokens=64, max_num_seqs=8,
        preemption_mode="swap",
        enable_prefix_caching=False,
    ) as llm:  # fmt: skip
        assert tokens(llm, make_prompts()) == roomy
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_preemption_changes_nothing(mixed_folder, expected, enable_prefix_caching, mode):
    with LLM(
        str(mixed_folder), **OPTIONS, num_gpu_blocks_override=MOST + 4, preemption_mode=mode,
        enable_prefix_caching=enable_prefix_caching,
    ) as llm:  # fmt: skip
        assert tokens(llm, make_prompts()) == expected
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0.9, seed=5, n=3, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.0, beam_width=3, max_tokens=16),
], ids=["n", "beams"])  # fmt: skip
def test_forks_survive_preemption(mixed_folder, mode, params):
    with LLM(str(mixed_folder), **OPTIONS) as llm:
        roomy = tokens(llm, make_prompts()[2:6], params)
    with LLM(str(mixed_folder), **OPTIONS, num_gpu_blocks_override=MOST + 30, preemption_mode=mode) as llm:
        assert tokens(llm, make_prompts()[2:6], params) == roomy
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_in_the_middle(mixed_folder, expected, level):
    """Blocks of every group come back, or all is computed again."""
    options = {**OPTIONS, "max_num_batched_tokens": 64, "max_num_seqs": 8, "enable_sleep_mode": True}
    with LLM(str(mixed_folder), **options) as llm:
        engine = llm.llm_engine
        for i, prompt in enumerate(make_prompts()):
            engine.add_request(str(i), prompt, GREEDY)
        found = {}
        for step in range(500):
            if step in (3, 30):
                llm.sleep(level, mode="keep")
                llm.wake_up()
            for output in engine.step():
                if output.finished:
                    found[int(output.request_id)] = [output.outputs[0].token_ids]
            if not engine.has_unfinished_requests():
                break
        assert [found[i] for i in range(len(expected))] == expected


def test_steps_ahead_change_nothing(mixed_folder, expected):
    with LLM(str(mixed_folder), **OPTIONS, async_scheduling=True, num_gpu_blocks_override=MOST + 20) as llm:
        assert tokens(llm, make_prompts()) == expected


def test_a_pool_that_cannot_hold_the_longest_sequence_is_refused(mixed_folder):
    # 256 tokens need 32 blocks of full attention and 5 in each of the two groups with a window.
    with pytest.raises(CacheSizeError, match="room for 248 tokens"):
        LLM(str(mixed_folder), **OPTIONS, num_gpu_blocks_override=41)
    with LLM(str(mixed_folder), **OPTIONS, num_gpu_blocks_override=42):
        pass


def test_windows_hold_fewer_blocks(mixed_folder):
    """A sequence of n tokens holds n / 8 blocks in the full group, and 5 at most in each of the others."""
    with LLM(str(mixed_folder), **OPTIONS, enable_prefix_caching=False) as llm:
        engine = llm.llm_engine
        engine.add_request("long", make_prompts()[4], SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True))
        engine.step()
        while engine.has_unfinished_requests():
            used, length = engine.stats().num_used_blocks, 200 + engine.stats().generation_tokens_total
            assert used <= -(-length // BLOCK_SIZE) + 2 * 5
            assert used < 3 * (length // BLOCK_SIZE) / 2, "of what three groups of full attention would hold"
            engine.step()
