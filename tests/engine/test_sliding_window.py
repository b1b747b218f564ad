"""A window of 32 tokens and prompts of 200: the tokens of transformers, whatever the engine does to get them."""

import pytest
import torch
from kit.engine.prompts import prompts_beyond_a_window
from kit.folder.checkpoint import write_checkpoint
from kit.model.greedy import assert_logprobs_equal, greedy_tokens, tokens_of
from transformers import AutoModelForCausalLM

from lullm import LLM, SamplingParams
from lullm.errors import CacheSizeError

WINDOW, BLOCK_SIZE = 32, 8
BLOCKS_OF_WINDOW = 5  # 31 tokens before the next one lie in up to 4 blocks, and it needs a place itself
OPTIONS = {"dtype": "float32", "max_model_len": 256, "block_size": BLOCK_SIZE}
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
PROMPTS = prompts_beyond_a_window([8, 8, 8, 8], 8)


def tokens(llm: LLM, prompts: list[list[int]] = PROMPTS, params: SamplingParams = GREEDY):
    return tokens_of(llm, prompts, params)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("mistral"), "mistral", sliding_window=WINDOW)


@pytest.fixture(scope="module")
def expected(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return [[greedy_tokens(model, prompt, GREEDY.max_tokens)] for prompt in PROMPTS]


@pytest.mark.half
@pytest.mark.parametrize("chunk", [1, 7, 64, 2048])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_greedy_tokens_equal_transformers(folder, expected, chunk, enable_prefix_caching):
    with LLM(
        str(folder), **OPTIONS, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 8),
        enable_prefix_caching=enable_prefix_caching, num_gpu_blocks_override=400,
    ) as llm:  # fmt: skip
        assert tokens(llm) == expected
        if enable_prefix_caching:
            hits = llm.llm_engine.stats().prefix_cache_hits_total
            assert tokens(llm) == expected, "with every prompt in the cache"
            assert llm.llm_engine.stats().prefix_cache_hits_total >= hits + 8 * 176


def test_logprobs_equal_transformers(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3, prompt_logprobs=0, ignore_eos=True)
    with LLM(str(folder), **OPTIONS, max_num_batched_tokens=48, max_num_seqs=4) as llm:
        [output] = llm.generate([PROMPTS[4]], params, use_tqdm=False)
    assert_logprobs_equal(model, output)


@pytest.mark.pairs
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("num_blocks", [BLOCKS_OF_WINDOW, 16])
def test_preemption_changes_nothing(folder, expected, enable_prefix_caching, mode, num_blocks):
    """With a pool of 40 slots for sequences of 240 tokens, and one of 128."""
    with LLM(
        str(folder), **OPTIONS, num_gpu_blocks_override=num_blocks, preemption_mode=mode,
        enable_prefix_caching=enable_prefix_caching,
    ) as llm:  # fmt: skip
        assert tokens(llm) == expected
        assert num_blocks == BLOCKS_OF_WINDOW or llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0.9, seed=5, n=3, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=0.0, beam_width=3, max_tokens=20),
], ids=["n", "beams"])  # fmt: skip
def test_forks_survive_preemption(folder, mode, params):
    with LLM(str(folder), **OPTIONS) as llm:
        roomy = tokens(llm, PROMPTS[2:7], params)
    with LLM(str(folder), **OPTIONS, num_gpu_blocks_override=20, preemption_mode=mode) as llm:
        assert tokens(llm, PROMPTS[2:7], params) == roomy
        assert llm.llm_engine.stats().num_preemptions > 0


def test_prefill_first(folder, expected):
    with LLM(str(folder), **OPTIONS, max_num_batched_tokens=256, enable_chunked_prefill=False) as llm:
        assert tokens(llm) == expected


def test_a_pool_that_cannot_hold_the_window_is_refused(folder):
    with pytest.raises(CacheSizeError, match="32 tokens"):
        LLM(str(folder), **OPTIONS, num_gpu_blocks_override=BLOCKS_OF_WINDOW - 1)


def test_decoding_sequences_hold_their_window(folder):
    with LLM(str(folder), **OPTIONS, enable_prefix_caching=False) as llm:
        engine = llm.llm_engine
        for i, prompt in enumerate(PROMPTS):
            engine.add_request(str(i), prompt, GREEDY)
        engine.step()
        while engine.has_unfinished_requests():
            assert engine.stats().num_used_blocks <= 12 * BLOCKS_OF_WINDOW
            engine.step()
