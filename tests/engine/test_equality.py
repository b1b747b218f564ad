"""The same tokens, whatever the engine does to get them: against transformers, and against itself (fp32, greedy)."""

import pytest
import torch
from kit.engine.prompts import random_prompts
from kit.model.greedy import greedy_tokens, tokens_of
from transformers import AutoModelForCausalLM

from lullm import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


def tokens(llm: LLM, prompts: list[list[int]], params: SamplingParams | list[SamplingParams] = GREEDY):
    return tokens_of(llm, prompts, params)


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=256) as llm:
        yield tokens(llm, random_prompts(12, 100))


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_sixty_four_greedy_tokens_equal_transformers(family, request):
    folder = request.getfixturevalue(f"{family}_folder")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = random_prompts(4, 60, seed=1)
    with LLM(str(folder), dtype="float32", max_model_len=256) as llm:
        ours = tokens(llm, prompts)
    assert ours == [[greedy_tokens(model, prompt, 64)] for prompt in prompts]


@pytest.mark.half
@pytest.mark.parametrize("chunk", [1, 7, 64, 4096])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_chunk_size_and_prefix_cache_change_nothing(qwen3_folder, expected, chunk, enable_prefix_caching):
    with LLM(
        str(qwen3_folder),
        dtype="float32",
        max_model_len=256,
        max_num_batched_tokens=chunk,
        max_num_seqs=min(chunk, 16),
        enable_prefix_caching=enable_prefix_caching,
    ) as llm:
        assert tokens(llm, random_prompts(12, 100)) == expected
        if enable_prefix_caching:
            assert llm.llm_engine.stats().prefix_cache_hits_total > 0
            assert tokens(llm, random_prompts(12, 100)) == expected, "with every prompt in the cache"


@pytest.mark.parametrize("block_size", [1, 5, 32])
def test_block_size_changes_nothing(qwen3_folder, expected, block_size):
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=256, block_size=block_size) as llm:
        assert tokens(llm, random_prompts(12, 100)) == expected


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_preemption_changes_nothing(qwen3_folder, expected, enable_prefix_caching, mode):
    with LLM(
        str(qwen3_folder),
        dtype="float32",
        max_model_len=176,
        num_gpu_blocks_override=22,
        block_size=8,
        enable_prefix_caching=enable_prefix_caching,
        preemption_mode=mode,
    ) as llm:
        assert tokens(llm, random_prompts(12, 100)) == expected
        assert llm.llm_engine.stats().num_preemptions > 0


def test_prefill_first_changes_nothing(qwen3_folder, expected):
    for delay_factor in (0.0, 0.5):
        with LLM(
            str(qwen3_folder),
            dtype="float32",
            max_model_len=256,
            max_num_batched_tokens=256,
            enable_chunked_prefill=False,
            delay_factor=delay_factor,
        ) as llm:
            assert tokens(llm, random_prompts(12, 100)) == expected


def test_content_comes_back_from_the_host_pool(qwen3_folder, expected):
    options = {"dtype": "float32", "max_model_len": 176, "num_gpu_blocks_override": 22, "block_size": 8}
    prompts = random_prompts(12, 100)
    with LLM(str(qwen3_folder), **options) as llm:
        for i in (1, 2, 4, 1, 2, 4):  # one pushes the other out of the device pool
            assert tokens(llm, [prompts[i]]) == [expected[i]]
        assert llm.llm_engine.stats().prefix_cache_host_hits_total > 0


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_parallel_sampling_survives_preemption(qwen3_folder, mode):
    prompts = random_prompts(6, 60)
    params = SamplingParams(temperature=0.9, seed=5, n=4, max_tokens=40, ignore_eos=True)
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128) as llm:
        roomy = tokens(llm, prompts, params)
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128, num_gpu_blocks_override=40, block_size=8) as llm:
        assert tokens(llm, prompts, params) == roomy
        assert llm.llm_engine.stats().num_preemptions > 0
    assert len({tuple(t) for t in roomy[0]}) == 4, "the completions of one request differ"


def test_a_seeded_request_does_not_depend_on_its_batch(qwen3_folder):
    prompts = random_prompts(32, 60, seed=3)
    params = [
        SamplingParams(temperature=0.8, top_p=0.95, seed=i, max_tokens=24, ignore_eos=True, presence_penalty=0.5)
        for i in range(32)
    ]
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128) as llm:
        together = tokens(llm, prompts, params)
        for i in (0, 7, 31):
            assert tokens(llm, [prompts[i]], [params[i]]) == [together[i]]


def test_an_engine_seed_repeats_a_run(qwen3_folder):
    params = SamplingParams(temperature=1.0, max_tokens=16)
    runs = []
    for seed in (1, 1, 2):
        with LLM(str(qwen3_folder), dtype="float32", max_model_len=128, seed=seed) as llm:
            runs.append(tokens(llm, random_prompts(3, 20), params))
    assert runs[0] == runs[1] != runs[2]


def test_logprobs_equal_transformers(qwen3_folder):
    prompt = random_prompts(1, 60, seed=4)[0]
    model = AutoModelForCausalLM.from_pretrained(qwen3_folder, dtype=torch.float32)
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128, max_num_batched_tokens=16, max_num_seqs=4) as llm:
        for _ in range(2):  # the second time the prompt is cached, and must be computed all the same
            [output] = llm.generate([prompt], params, use_tqdm=False)
            whole = prompt + output.outputs[0].token_ids
            with torch.inference_mode():
                truth = model(torch.tensor([whole])).logits[0].log_softmax(-1)
            assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
            for position, found in enumerate(output.prompt_logprobs[1:] + output.outputs[0].logprobs):
                chosen = whole[position + 1]
                assert next(iter(found)) == chosen
                for token_id, logprob in found.items():
                    assert logprob.logprob == pytest.approx(truth[position, token_id].item(), abs=1e-4)
                    assert logprob.rank == 1 + int((truth[position] > truth[position, token_id] + 1e-6).sum())
            assert output.outputs[0].cumulative_logprob == pytest.approx(
                sum(next(iter(p.values())).logprob for p in output.outputs[0].logprobs)
            )
