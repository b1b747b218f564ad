"""A draft model: the outputs are those without it, in fewer steps, whatever happens to the blocks."""

import json

import pytest
import torch
from kit.engine.parts import worker_of
from kit.folder.draft import write_draft

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, ModelLoadError, UnsupportedError

from .test_overlap import run, workload


@pytest.fixture(scope="module")
def draft(qwen3_folder, tmp_path_factory):
    """A model that guesses some tokens of `qwen3_folder` right: the same with noise in its weights."""
    return write_draft(qwen3_folder, tmp_path_factory.mktemp("draft"), noise=0.02)


@pytest.fixture(scope="module")
def requests():
    return workload(48, seed=7)


@pytest.fixture(scope="module")
def expected(qwen3_folder, requests):
    return run(qwen3_folder, requests)[0]


def guessing(draft, adaptive=False, num=3, **more):
    return {"model": str(draft), "num_speculative_tokens": num, "adaptive": adaptive, **more}


POOLS = {"num_gpu_blocks_override": 30, "block_size": 8}


@pytest.mark.half
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": "bfloat16", "max_num_seqs": 40, "max_num_batched_tokens": 96},
        {**POOLS, "preemption_mode": "swap"},
        {**POOLS, "preemption_mode": "recompute"},
        {"enable_prefix_caching": False, "enable_chunked_prefill": False, "max_num_batched_tokens": 128},
        {"enforce_eager": True, "max_num_batched_tokens": 20, "max_num_seqs": 20},
    ],
    ids=["plain", "bfloat16", "swap", "recompute", "whole", "eager"],
)
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_same_outputs(qwen3_folder, draft, requests, expected, options, adaptive):
    outputs, _, stats = run(qwen3_folder, requests, speculative_config=guessing(draft, adaptive), **options)
    if "dtype" in options:
        expected = run(qwen3_folder, requests, **options)[0]
    assert outputs == expected
    assert (stats.num_preemptions > 0) == ("preemption_mode" in options)
    assert stats.drafts_total > 0 and stats.draft_seconds_total > 0
    if not adaptive:
        assert stats.quiet_steps_total == 0
        assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total
        assert sum(stats.accepted_by_position_total) == stats.accepted_tokens_total


@pytest.mark.parametrize("level", [1, 2])
def test_the_same_outputs_through_sleeps(qwen3_folder, draft, requests, expected, level):
    def sleep_at_times(llm: LLM, step: int) -> None:
        if step % 20 == 10:
            forecast = llm.explain_sleep(level=level)
            report = llm.llm_engine.sleep(level=level)
            assert worker_of(llm).resident_bytes()["draft"] == 0 and forecast.tags == report.tags
            llm.llm_engine.wake_up()

    options = {"speculative_config": guessing(draft), "enable_sleep_mode": True}
    outputs, _, stats = run(qwen3_folder, requests, sleep_at_times, **options)
    assert outputs == expected and stats.accepted_tokens_total > 0.3 * stats.draft_tokens_total


def decoded(folder, spec, params, prompt=(5, 6, 7), **options):
    with LLM(str(folder), speculative_config=spec, max_model_len=256, dtype="float32", **options) as llm:
        outputs = llm.generate([{"prompt_token_ids": list(prompt)}], params, use_tqdm=False)
        return [completion.token_ids for completion in outputs[0].outputs], llm.llm_engine.stats()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_equal_model_is_always_right(qwen3_folder, temperature):
    """Drawn tokens, too: it draws with the same noise. A step then gives four tokens."""
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=100, ignore_eos=True, logprobs=1, n=2)
    expected, plain = decoded(qwen3_folder, None, params)
    tokens, stats = decoded(qwen3_folder, guessing(qwen3_folder), params)
    assert tokens == expected
    assert stats.accepted_tokens_total == stats.draft_tokens_total
    assert stats.steps_total <= plain.steps_total / 4 + 2
    assert max(stats.accepted_by_position_total) - min(stats.accepted_by_position_total) <= 2


@pytest.mark.parametrize("prefix", [True, False])
def test_a_long_prompt_comes_in_chunks_and_its_prefix_is_found(qwen3_folder, prefix):
    """Right guesses show that the draft model has seen all of it, though it computes a found prefix only once."""
    prompt = [(7 * i) % 300 + 3 for i in range(150)]
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    options = {"max_num_batched_tokens": 32, "max_num_seqs": 16, "enable_prefix_caching": prefix}
    with LLM(str(qwen3_folder), speculative_config=guessing(qwen3_folder), max_model_len=256, **options) as llm:
        found = []
        for _ in range(2):
            llm.generate([{"prompt_token_ids": [*prompt, 9]}], params, use_tqdm=False)
            stats = llm.llm_engine.stats()
            assert stats.accepted_tokens_total == stats.draft_tokens_total
            found.append(stats.draft_tokens_total - sum(found))
        [per_position] = [metric for metric in llm.get_metrics() if metric.name.endswith("_per_pos")]
        assert per_position.values == list(stats.accepted_by_position_total)
        assert (found[1] > found[0] > 15) if prefix else (found[1] == found[0] > 15)


@pytest.mark.parametrize("cache", ["int8"])
def test_a_quantized_cache(qwen3_folder, draft, cache):
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    expected, _ = decoded(qwen3_folder, None, params, kv_cache_dtype=cache)
    tokens, stats = decoded(qwen3_folder, guessing(draft), params, kv_cache_dtype=cache)
    assert tokens == expected and stats.accepted_tokens_total > 0


def test_two_workers_share_both_models(qwen3_folder, draft):
    options = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", "threads": 2}
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=40, ignore_eos=True)
    expected, _ = decoded(qwen3_folder, None, params, **options)
    tokens, stats = decoded(qwen3_folder, guessing(draft), params, **options)
    assert tokens == expected and stats.accepted_tokens_total > 0


def test_windows_beside_full_attention(mixed_folder, qwen3_folder):
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    expected, _ = decoded(mixed_folder, None, params)
    tokens, stats = decoded(mixed_folder, guessing(qwen3_folder), params)
    assert tokens == expected and stats.draft_tokens_total > 0


def test_a_quantized_draft_of_its_own_length(qwen3_folder, tmp_path):
    """Beyond the positions of the draft model nothing is guessed."""
    short = write_draft(qwen3_folder, tmp_path, max_position_embeddings=64)
    params = SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True)
    expected, _ = decoded(qwen3_folder, None, params)
    for more in ({"quantization": "int8"}, {"max_model_len": 32}):
        tokens, stats = decoded(qwen3_folder, guessing(short, **more), params)
        longest = more.get("max_model_len", 64)
        assert tokens == expected and 10 < stats.draft_tokens_total <= 3 * longest
        assert stats.steps_total > 120 - longest


def test_updates_are_of_the_model_alone(qwen3_folder):
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    prompt = [{"prompt_token_ids": [5, 6, 7]}]
    with LLM(str(qwen3_folder), speculative_config=guessing(qwen3_folder), max_model_len=128) as llm:
        draft = {name: p.clone() for name, p in worker_of(llm).draft.loaded.model.named_parameters()}
        before = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
        llm.update_weights([("model.norm.weight", torch.linspace(-1, 1, 64))])
        after = llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids
        stats = llm.llm_engine.stats()
        assert before != after and stats.accepted_tokens_total < stats.draft_tokens_total
        for name, parameter in worker_of(llm).draft.loaded.model.named_parameters():
            assert torch.equal(parameter, draft[name])


def test_drafts_that_do_not_fit(qwen3_folder, llama_folder, mixed_folder, tmp_path):
    other = write_draft(qwen3_folder, tmp_path / "vocab", vocab_size=321)
    with pytest.raises(ConfigError, match="321 token ids, and the model has 320"):
        LLM(str(qwen3_folder), speculative_config=guessing(other))
    with pytest.raises(UnsupportedError, match="full attention in all layers"):
        LLM(str(qwen3_folder), speculative_config=guessing(mixed_folder))
    with pytest.raises(ModelLoadError, match="the draft model: there is no model folder"):
        LLM(str(qwen3_folder), speculative_config=guessing(tmp_path / "none"))
    tokens = write_draft(qwen3_folder, tmp_path / "tokens")
    text = json.loads((tokens / "tokenizer.json").read_text())
    vocab = text["model"]["vocab"]
    first, second = list(vocab)[10:12]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (tokens / "tokenizer.json").write_text(json.dumps(text))
    with pytest.raises(ConfigError, match="tokenizer is another one: 2 of its"):
        LLM(str(qwen3_folder), speculative_config=guessing(tokens))
    with pytest.raises(ConfigError, match="above the draft model's 512 positions"):
        LLM(str(qwen3_folder), speculative_config=guessing(llama_folder, max_model_len=513))
