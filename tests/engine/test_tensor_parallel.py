"""Workers that share the matrices give the tokens of one, whatever the engine does meanwhile. They live in threads."""

import functools

import pytest
import torch
from kit.engine.prompts import random_prompts
from kit.engine.same_tokens import (
    check_equal,
    check_new_weights,
    check_recordings,
    check_sleep_in_the_middle,
    engines,
    tokens_of,
)
from kit.folder.checkpoint import write_checkpoint, write_tokenizer
from kit.model.decisive import decisive_tokens
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model
from kit.worker.threads import MeetingExecutor, use_threads
from safetensors.torch import load_file

from lullm import LLM, SamplingParams, StructuredOutputsParams
from lullm.errors import ConfigError, ModelLoadError
from lullm.ops.cpu.library import absence
from lullm.weights.rows.place import PlainRows

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def answers(qwen3_folder):
    """Prompts with their greedy tokens, by one worker."""
    return decisive_tokens(qwen3_folder, 6, 24, **OPTIONS)


@pytest.fixture
def shared(qwen3_folder, monkeypatch):
    """Makes an engine of two workers."""
    use_threads(monkeypatch)
    with engines(qwen3_folder, {"tensor_parallel_size": 2} | OPTIONS) as open_shared:
        yield open_shared


def parameters_of(worker):
    return dict(worker.loaded.model.named_parameters())


def test_each_worker_has_half_and_reads_no_more(shared, qwen3_folder, monkeypatch):
    num_read = {}
    write = PlainRows.write

    def count(rows, values, first_row=0):
        num_read[id(rows.tensor.untyped_storage())] = values.nbytes + num_read.get(id(rows.tensor.untyped_storage()), 0)
        write(rows, values, first_row)

    with LLM(str(qwen3_folder), **OPTIONS) as alone:
        [whole] = alone.collective_rpc(parameters_of)
        whole = {name: parameter.numel() for name, parameter in whole.items()}
        [block_bytes] = alone.collective_rpc(lambda worker: worker.pools.block_bytes)
    monkeypatch.setattr(PlainRows, "write", count)
    llm = shared()
    own = llm.collective_rpc(parameters_of)
    for parameters in own:
        is_whole = {name for name, parameter in parameters.items() if parameter.numel() == whole[name]}
        assert is_whole == {name for name in whole if "norm" in name or "embed" in name}
        halves = [name for name in whole if name not in is_whole and "lm_head" not in name]
        assert all(2 * parameters[name].numel() == whole[name] for name in halves)
    assert sum(num_read.values()) <= sum(p.nbytes for parameters in own for p in parameters.values())
    assert llm.collective_rpc(lambda worker: 2 * worker.pools.block_bytes) == [block_bytes, block_bytes]


def test_the_prefix_cache_and_chunks(shared, qwen3_folder):
    prompts = random_prompts(4, 60)
    with LLM(str(qwen3_folder), **OPTIONS) as alone:
        expected = tokens_of(alone.generate(prompts, GREEDY, use_tqdm=False))
    llm = shared(max_num_batched_tokens=16, max_num_seqs=4)
    for _ in range(2):
        assert tokens_of(llm.generate(prompts, GREEDY, use_tqdm=False)) == expected
    assert llm.llm_engine.stats().prefix_cache_hits_total > 100


@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
def test_preemption(shared, answers, mode):
    llm = shared(num_gpu_blocks_override=16, preemption_mode=mode)
    check_equal(llm, answers)
    assert llm.llm_engine.stats().num_preemptions > 0


def test_samples_and_beams(shared, qwen3_folder, answers):
    sampled = SamplingParams(temperature=0.9, seed=1, n=4, max_tokens=16, ignore_eos=True, logprobs=2)
    prompts = list(answers)[:3]
    with LLM(str(qwen3_folder), **OPTIONS) as alone:
        expected = tokens_of(alone.generate(prompts, sampled, use_tqdm=False))
        beams = alone.beam_search(prompts, beam_width=3, max_tokens=10)
    llm = shared()
    assert tokens_of(llm.generate(prompts, sampled, use_tqdm=False)) == expected
    assert tokens_of(llm.beam_search(prompts, beam_width=3, max_tokens=10)) == tokens_of(beams)


@pytest.mark.parametrize("num_workers", [2, 4])
def test_draws_of_every_kind(shared, monkeypatch, qwen3_folder, num_workers):
    """Each worker draws for its rows of every batch, whose number falls from 7 to 1."""
    letters = StructuredOutputsParams(regex="[ab ]+")
    kinds = [{"logprobs": 3}, {"structured_outputs": letters}, {"repetition_penalty": 1.3}, {"top_p": 0.8}]
    kinds += [{"temperature": 0.0}, {"min_p": 0.1, "logprobs": 0}, {"presence_penalty": 0.5, "top_k": 20}]
    params = [
        SamplingParams(**{"temperature": 0.9, "seed": number} | kind, max_tokens=6 + 3 * number, ignore_eos=True)
        for number, kind in enumerate(kinds)
    ]
    prompts = random_prompts(len(params), 20)
    with LLM(str(qwen3_folder), **OPTIONS) as alone:
        expected = alone.generate(prompts, params, use_tqdm=False)
    if absence() is None:
        use_threads(monkeypatch, MeetingExecutor)
    found = shared(tensor_parallel_size=num_workers).generate(prompts, params, use_tqdm=False)
    assert tokens_of(found) == tokens_of(expected)
    for output, other in zip(found, expected, strict=True):
        own, ranked = (each.outputs[0].logprobs or [] for each in (output, other))
        assert [list(at) for at in own] == [list(at) for at in ranked]
        logprobs = [[entry.logprob for at in each for entry in at.values()] for each in (own, ranked)]
        assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-5)


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_in_the_middle(shared, answers, level):
    check_sleep_in_the_middle(shared(enable_sleep_mode=True), answers, level)


def test_new_weights(shared, tmp_path):
    """Whole tensors come, and each worker takes its share; also behind a sleep that has saved what was pushed."""
    llm = shared(enable_sleep_mode=True)
    check_new_weights(llm, tmp_path, **OPTIONS)
    with pytest.raises(ModelLoadError, match=r"o_proj.weight has shape \[64, 32\], the model's has \[64, 64\]"):
        llm.update_weights([("model.layers.0.self_attn.o_proj.weight", torch.zeros(64, 32))])


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_integers_of_one_worker(shared, qwen3_folder, quantization):
    """A share is cut from whole quantized rows, so that both halves together are what one worker has."""
    options = OPTIONS | {"quantization": quantization}
    check_equal(shared(quantization=quantization), decisive_tokens(qwen3_folder, 4, 24, **options))


def test_dummy_weights_are_those_of_one_worker(shared, qwen3_folder):
    options = {"load_format": "dummy", "seed": 3}
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    prompt = "the quick brown fox"
    found = []
    with LLM(str(qwen3_folder), **OPTIONS | options) as alone:
        found.append(alone.generate(prompt, params, use_tqdm=False)[0].prompt_logprobs)
    found.append(shared(**options).generate(prompt, params, use_tqdm=False)[0].prompt_logprobs)
    first, second = ([entry.logprob for at in of[1:] for entry in at.values()] for of in found)
    assert first == pytest.approx(second, abs=1e-5)


def test_four_workers_and_two_key_heads(shared, answers):
    check_equal(shared(tensor_parallel_size=4, kv_cache_dtype="auto"), answers)


def test_a_quantized_cache(shared, qwen3_folder):
    for kind in ("int8", "fp8"):
        options = OPTIONS | {"kv_cache_dtype": kind}
        check_equal(shared(kv_cache_dtype=kind), decisive_tokens(qwen3_folder, 2, 24, **options))


@pytest.mark.skipif(absence() is not None, reason="no native ops")
@pytest.mark.parametrize("num_workers", [2, 4])
def test_recorded_steps(shared, monkeypatch, answers, num_workers):
    """Over shared memory, whose sums are native calls."""
    use_threads(monkeypatch, MeetingExecutor)
    check_recordings(functools.partial(shared, tensor_parallel_size=num_workers), answers)


@pytest.mark.skipif(absence() is not None, reason="no native ops")
@pytest.mark.parametrize("family", ["Olmo2", "Olmo3", "Olmoe"])
def test_norms_over_all_heads_are_recorded(shared, monkeypatch, tmp_path, family):
    """The squares of all workers' heads are summed within the recording."""
    sizes = {"vocab_size": 320, "hidden_size": 64, "head_dim": 16, "intermediate_size": 64}
    random_model(family, SIZES | CASES[family].engine | sizes).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    answers = decisive_tokens(tmp_path, 4, 24, **OPTIONS)
    use_threads(monkeypatch, MeetingExecutor)
    check_recordings(functools.partial(shared, tmp_path), answers)


def test_what_three_workers_cannot_share(shared):
    with pytest.raises(
        ConfigError, match="tensor_parallel_size=3 does not divide Qwen3ForCausalLM: num_attention_heads"
    ):
        shared(tensor_parallel_size=3)


@pytest.fixture(scope="module")
def experts_folder(tmp_path_factory):
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    return write_checkpoint(tmp_path_factory.mktemp("experts"), "qwen3_moe", **sizes)


@pytest.mark.parametrize("deals", [False, True], ids=["parts of experts", "whole experts"])
def test_experts(shared, monkeypatch, experts_folder, deals):
    """Over recorded steps where they are native, with a sleep, new weights and integers."""
    expected = decisive_tokens(experts_folder, 4, 24, **OPTIONS)
    if absence() is None:
        use_threads(monkeypatch, MeetingExecutor)
    llm = shared(experts_folder, enable_expert_parallel=deals, enable_sleep_mode=True)
    check_equal(llm, expected)
    for worker in llm.llm_engine.model_executor.workers:
        assert absence() is not None or worker.model_runner.graphs.sizes
        experts = worker.loaded.model.model.layers[0].mlp.weights
        assert len(experts.down.weights) == (4 if deals else 8)
        assert experts.down.shape == (64, 64 if deals else 32)
    llm.sleep(level=2)
    llm.wake_up()
    check_equal(llm, expected)
    tensors = load_file(experts_folder / "model.safetensors")
    assert llm.update_weights(iter(tensors.items())) == len(tensors), "also those that one worker lacks"
    check_equal(llm, expected)
    for quantization in ("int8", "int4"):
        alone = decisive_tokens(experts_folder, 3, 16, **OPTIONS, quantization=quantization)
        quantized = shared(experts_folder, enable_expert_parallel=deals, quantization=quantization)
        check_equal(quantized, alone, 16)


def test_experts_that_nobody_has(shared, experts_folder):
    with pytest.raises(ConfigError, match="enable_expert_parallel: Qwen3ForCausalLM has no experts"):
        shared(enable_expert_parallel=True)
    with pytest.raises(ConfigError, match="set tensor_parallel_size"):
        shared(experts_folder, tensor_parallel_size=1, enable_expert_parallel=True)
