"""Layers with a window of 32 tokens between layers that see all: the tokens of transformers, in fewer blocks."""

import pytest
import torch
from kit.engine.parts import kv_caches_of, use_ops
from kit.engine.prompts import prompts_beyond_a_window
from kit.model.greedy import greedy_tokens, tokens_of
from transformers import AutoModelForCausalLM

from lullm import LLM, SamplingParams
from lullm.errors import CacheSizeError
from lullm.ops.selection import REFERENCE_OPS

BLOCK_SIZE = 8
OPTIONS = {"dtype": "float32", "max_model_len": 256, "block_size": BLOCK_SIZE}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = prompts_beyond_a_window([8, 8, 8, 8], 6)
MOST = 30 + 2 * 5
"""Blocks of a sequence of 240 tokens: all of them in the one full group, those of the window in the two others."""


def tokens(llm: LLM, prompts: list[list[int]] = PROMPTS, params: SamplingParams = GREEDY):
    return tokens_of(llm, prompts, params)


@pytest.fixture(scope="module")
def expected(mixed_folder):
    model = AutoModelForCausalLM.from_pretrained(mixed_folder, dtype=torch.float32)
    return [[greedy_tokens(model, prompt, GREEDY.max_tokens)] for prompt in PROMPTS]


@pytest.mark.half
@pytest.mark.parametrize("chunk", [7, 64, 2048])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_greedy_tokens_equal_transformers(mixed_folder, expected, chunk, enable_prefix_caching):
    with LLM(
        str(mixed_folder), **OPTIONS, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 8),
        enable_prefix_caching=enable_prefix_caching, num_gpu_blocks_override=700,
    ) as llm:  # fmt: skip
        assert len(kv_caches_of(llm)) == 2, "six layers stand in the two slots of a block"
        assert tokens(llm) == expected
        if enable_prefix_caching:
            hits = llm.llm_engine.stats().prefix_cache_hits_total
            assert tokens(llm) == expected, "with every prompt in the cache"
            assert llm.llm_engine.stats().prefix_cache_hits_total >= hits + 6 * 184


def test_the_reference_gives_the_same(mixed_folder, expected, monkeypatch):
    use_ops(monkeypatch, REFERENCE_OPS)
    with LLM(str(mixed_folder), **OPTIONS, max_num_batched_tokens=64, max_num_seqs=8) as llm:
        assert tokens(llm, PROMPTS[2:7]) == expected[2:7]


@pytest.mark.parametrize("kv_cache_dtype", ["int8", "fp8"])
def test_a_small_cache_is_as_exact_as_with_one_group(mixed_folder, kv_cache_dtype):
    """Other ways to the same tokens: whole prompts, and chunks with preemption."""
    options = {**OPTIONS, "kv_cache_dtype": kv_cache_dtype}
    with LLM(str(mixed_folder), **options) as llm:
        roomy = tokens(llm)
    with LLM(
        str(mixed_folder), **options, num_gpu_blocks_override=MOST + 4, max_num_batched_tokens=64, max_num_seqs=8,
        preemption_mode="swap",
        enable_prefix_caching=False,
    ) as llm:  # fmt: skip
        assert tokens(llm) == roomy
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_preemption_changes_nothing(mixed_folder, expected, enable_prefix_caching, mode):
    with LLM(
        str(mixed_folder), **OPTIONS, num_gpu_blocks_override=MOST + 4, preemption_mode=mode,
        enable_prefix_caching=enable_prefix_caching,
    ) as llm:  # fmt: skip
        assert tokens(llm) == expected
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0.9, seed=5, n=3, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0.0, beam_width=3, max_tokens=16),
], ids=["n", "beams"])  # fmt: skip
def test_forks_survive_preemption(mixed_folder, mode, params):
    with LLM(str(mixed_folder), **OPTIONS) as llm:
        roomy = tokens(llm, PROMPTS[2:6], params)
    with LLM(str(mixed_folder), **OPTIONS, num_gpu_blocks_override=MOST + 30, preemption_mode=mode) as llm:
        assert tokens(llm, PROMPTS[2:6], params) == roomy
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_in_the_middle(mixed_folder, expected, level):
    """Blocks of every group come back, or all is computed again."""
    options = {**OPTIONS, "max_num_batched_tokens": 64, "max_num_seqs": 8, "enable_sleep_mode": True}
    with LLM(str(mixed_folder), **options) as llm:
        engine = llm.llm_engine
        for i, prompt in enumerate(PROMPTS):
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
        assert tokens(llm) == expected


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
        engine.add_request("long", PROMPTS[4], SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True))
        engine.step()
        while engine.has_unfinished_requests():
            used, length = engine.stats().num_used_blocks, 200 + engine.stats().generation_tokens_total
            assert used <= -(-length // BLOCK_SIZE) + 2 * 5
            assert used < 3 * (length // BLOCK_SIZE) / 2, "of what three groups of full attention would hold"
            engine.step()
