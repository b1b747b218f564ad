"""Guessed tokens of a real model: the outputs are those without, in fewer steps."""

import pytest

from lullm import LLM, SamplingParams

from .test_overlap import run, workload

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
NGRAM["adaptive"] = False  # a model of this size has its tokens faster than guesses
SUFFIX = {"method": "suffix", "suffix_decoding_max_spec_factor": 2.0, "adaptive": False}


@pytest.fixture(scope="module")
def requests():
    return workload(64, seed=7)


@pytest.mark.half
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 40, "max_num_batched_tokens": 96},
        {"num_gpu_blocks_override": 44, "block_size": 8, "preemption_mode": "swap"},
        {"num_gpu_blocks_override": 44, "block_size": 8, "preemption_mode": "recompute"},
        {"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_num_batched_tokens": 128},
        {"enforce_eager": True, "enable_prefix_caching": False},
    ],
    ids=["plain", "many", "swap", "recompute", "whole", "eager"],
)
def test_the_same_outputs(qwen3_folder, requests, dtype, options):
    options = {"dtype": dtype, **options}
    expected, _, plain = run(qwen3_folder, requests, **options)
    outputs, _, stats = run(qwen3_folder, requests, speculative_config=NGRAM, **options)
    assert outputs == expected
    assert (stats.num_preemptions > 0) == ("preemption_mode" in options)
    assert stats.drafts_total > 0 and plain.drafts_total == 0
    if not stats.num_preemptions:  # requests that wait leave little room for drafts
        assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total


def test_the_same_outputs_through_sleeps(qwen3_folder, requests):
    def sleep_at_times(llm: LLM, step: int) -> None:
        if step % 20 == 10:
            llm.llm_engine.sleep(level=1)
            llm.llm_engine.wake_up()

    expected = run(qwen3_folder, requests)[0]
    outputs, _, stats = run(qwen3_folder, requests, sleep_at_times, speculative_config=NGRAM, enable_sleep_mode=True)
    assert outputs == expected and stats.accepted_tokens_total > 0


def test_the_same_outputs_with_as_many_guesses_as_pay(qwen3_folder, requests):
    expected = run(qwen3_folder, requests)[0]
    outputs, _, stats = run(qwen3_folder, requests, speculative_config={**NGRAM, "adaptive": True})
    assert outputs == expected and stats.drafts_total > 0


@pytest.mark.parametrize(
    "options", [{}, {"num_gpu_blocks_override": 44, "block_size": 8, "preemption_mode": "swap"}], ids=["plain", "swap"]
)
def test_the_same_outputs_with_suffixes(qwen3_folder, requests, options):
    expected = run(qwen3_folder, requests, **options)[0]
    outputs, _, stats = run(qwen3_folder, requests, speculative_config=SUFFIX, **options)
    assert outputs == expected and stats.drafts_total > 0
    assert (stats.num_preemptions > 0) == ("preemption_mode" in options)


def test_an_answer_that_was_given_before_takes_fewer_steps(qwen3_folder):
    """A rollout of a prompt that had one: nothing in the text itself repeats."""
    params = SamplingParams(max_tokens=60, temperature=1.0, seed=3, ignore_eos=True)
    with LLM(str(qwen3_folder), speculative_config=SUFFIX, max_model_len=128) as llm:
        stats = [llm.llm_engine.stats()]
        outputs = []
        for _ in range(2):
            [output] = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
            outputs.append(output.outputs[0].token_ids)
            stats.append(llm.llm_engine.stats())
    assert outputs[0] == outputs[1]
    first, second = (b.steps_total - a.steps_total for a, b in zip(stats, stats[1:], strict=False))
    assert first >= 50 and second < 0.3 * first


def test_a_text_that_repeats_itself_takes_fewer_steps(qwen3_folder):
    params = SamplingParams(max_tokens=100, ignore_eos=True, allowed_token_ids=[5])
    found = []
    for speculative_config in (None, NGRAM):
        with LLM(str(qwen3_folder), speculative_config=speculative_config, max_model_len=128) as llm:
            [output] = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
            found.append((output.outputs[0].token_ids, llm.llm_engine.stats()))
    (expected, plain), (tokens, stats) = found
    assert tokens == expected
    assert stats.steps_total < 0.3 * plain.steps_total
    assert stats.steps_total + stats.accepted_tokens_total == plain.steps_total
