"""Adapters (LoRA): the tokens are those of a checkpoint that the adapter is merged into, whatever the engine does."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from kit.engine.prompts import random_prompts
from kit.engine.same_tokens import tokens_of
from kit.folder.checkpoint import write_tokenizer
from kit.model.families import HALF
from kit.model.golden import SIZES, random_model
from kit.model.lora import ALL, merged, write_adapter
from kit.worker.threads import use_threads

from lullm import LLM, AsyncLLMEngine, EngineConfig, LoRARequest, SamplingParams
from lullm.errors import ConfigError, InvalidRequestError, ModelLoadError, UnsupportedError
from lullm.ops.cpu.library import absence

OPTIONS = {"dtype": "float32", "max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 64}
ADAPTING = {"enable_lora": True, "max_lora_rank": 8}
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PROMPTS = random_prompts(3, 40)
NUM = 3


def generate(llm, prompts, loras=None, params=GREEDY):
    return tokens_of(llm.generate(prompts, params, use_tqdm=False, lora_request=loras))


@pytest.fixture(scope="module")
def loras(qwen3_folder, tmp_path_factory):
    """Adapters of different ranks, factors and layers."""
    root = tmp_path_factory.mktemp("adapters")
    settings = [
        {"rank": 4, "alpha": 8.0},
        {"rank": 2, "alpha": 3.0, "use_rslora": True, "targets": r"\.(q_proj|v_proj|down_proj)\.weight$"},
        {"rank": 8, "alpha": 4.0, "rank_pattern": {"k_proj": 3}, "alpha_pattern": {"up_proj": 16}},
    ]
    folders = [write_adapter(root / str(n), qwen3_folder, seed=n, **each) for n, each in enumerate(settings)]
    return [LoRARequest(f"adapter-{n}", n + 1, str(folder)) for n, folder in enumerate(folders)]


@pytest.fixture(scope="module")
def expected(qwen3_folder, loras, tmp_path_factory):
    """By adapter (0: none), the tokens of each prompt, of merged weights."""
    root = tmp_path_factory.mktemp("merged")
    folders = [qwen3_folder] + [
        merged(root / lora.lora_name, qwen3_folder, root / lora.lora_path) for lora in loras
    ]  # the paths are absolute
    found = []
    for folder in folders:
        with LLM(str(folder), **OPTIONS) as llm:
            found.append(generate(llm, PROMPTS))
    assert all(a != b for n, own in enumerate(found) for other in found[:n] for a, b in zip(own, other, strict=True))
    return found


@pytest.fixture
def mixed(loras):
    """(prompts, adapter of each or None, and its number)."""
    numbers = [0, 1, 2, 3, 3, 1, 0, 2, 1, 2, 3, 0]
    prompts = [PROMPTS[place % 3] for place in range(12)]
    return prompts, [loras[number - 1] if number else None for number in numbers], numbers


def check(llm, mixed, expected):
    prompts, each, numbers = mixed
    found = generate(llm, prompts, each)
    assert found == [expected[number][place % 3] for place, number in enumerate(numbers)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_loras": 1},
        {"max_loras": 3, "max_num_batched_tokens": 16, "max_num_seqs": 12},
        {"max_loras": 2, "enable_prefix_caching": False, "enforce_eager": True},
        {"max_loras": 2, "num_gpu_blocks_override": 22, "preemption_mode": "swap"},
        {"max_loras": 3, "num_gpu_blocks_override": 22, "preemption_mode": "recompute"},
        {"max_loras": 2, "max_cpu_loras": 3, "enable_chunked_prefill": False, "max_num_batched_tokens": 128},
        {"max_loras": 2, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
        {"max_loras": 2, "async_scheduling": True},
    ],
    ids=str,
)
def test_the_tokens_of_merged_weights(qwen3_folder, mixed, expected, options):
    with LLM(str(qwen3_folder), **{**OPTIONS, **ADAPTING, **options}) as llm:
        for _ in range(2):  # the second time prefixes are found, each by its own adapter
            check(llm, mixed, expected)
        stats = llm.llm_engine.stats()
        assert (stats.num_preemptions > 0) == ("preemption_mode" in options)
        assert stats.num_waiting_for_adapter == 0 and stats.adapter_moves_total >= 3
        assert options["max_loras"] == 3 or stats.adapter_moves_total > 3
        if absence() is None and not options.get("enforce_eager"):
            graphs = llm.llm_engine.model_executor.driver_worker.model_runner.graphs
            assert graphs.sizes and graphs.refusal is None
        llm.llm_engine._block_space.check_conservation()


def test_bits_do_not_depend_on_the_batch(qwen3_folder, mixed):
    prompts, each, _ = mixed
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)

    def numbers(outputs):
        return [[entry.logprob for at in o.outputs[0].logprobs for entry in at.values()] for o in outputs]

    if absence() is not None:
        pytest.skip("torch's sums follow the batch")
    options = OPTIONS | ADAPTING | {"dtype": "bfloat16", "enable_prefix_caching": False, "max_loras": 3}
    with LLM(str(qwen3_folder), **options) as llm:
        together = numbers(llm.generate(prompts, params, use_tqdm=False, lora_request=each))
        alone = [
            numbers(llm.generate(prompt, params, use_tqdm=False, lora_request=lora))[0]
            for prompt, lora in zip(prompts[:4], each[:4], strict=True)
        ]
    assert together[:4] == alone


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_in_the_middle(qwen3_folder, mixed, expected, level):
    prompts, each, numbers = mixed
    options = OPTIONS | ADAPTING | {"max_loras": 2, "enable_sleep_mode": True}
    with LLM(str(qwen3_folder), **options) as llm:
        engine, found = llm.llm_engine, {}
        for place, (prompt, lora) in enumerate(zip(prompts, each, strict=True)):
            engine.add_request(str(place), prompt, GREEDY, lora_request=lora)
        for step in range(400):
            if step in (3, 20):
                assert engine.model_executor.driver_worker.resident_bytes()["lora"] > 0
                assert engine.explain_sleep(level).frees_bytes > 0
                engine.sleep(level)
                assert engine.model_executor.driver_worker.resident_bytes()["lora"] == 0
                engine.wake_up()
            for output in engine.step():
                found[int(output.request_id)] = output.outputs[0].token_ids
            if not engine.has_unfinished_requests():
                break
        assert [[found[n]] for n in range(12)] == [expected[number][n % 3] for n, number in enumerate(numbers)]
        check(llm, mixed, expected)


def test_several_sequences_and_beams(qwen3_folder, loras, tmp_path):
    params = [
        SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=8, ignore_eos=True),
        SamplingParams(n=2, beam_width=2, max_tokens=8, ignore_eos=True),
    ]
    folder = merged(tmp_path / "merged", qwen3_folder, tmp_path / loras[0].lora_path)
    with LLM(str(folder), **OPTIONS) as llm:
        wanted = [generate(llm, PROMPTS, params=each) for each in params]
    with LLM(str(qwen3_folder), **OPTIONS, **ADAPTING) as llm:
        assert [generate(llm, PROMPTS, loras[0], each) for each in params] == wanted


def test_the_life_of_an_adapter(qwen3_folder, loras, expected, tmp_path):
    first, second, third = loras
    options = OPTIONS | ADAPTING | {"max_cpu_loras": 2}
    with LLM(str(qwen3_folder), **options) as llm:
        assert llm.list_loras() == set() and not llm.remove_lora(1) and not llm.pin_lora(1)
        assert llm.add_lora(first) and not llm.add_lora(first) and llm.list_loras() == {1}
        with pytest.raises(InvalidRequestError, match="lora_int_id 1 is the adapter 'adapter-0' of"):
            llm.add_lora(LoRARequest("other", 1, second.lora_path))
        assert llm.pin_lora(1) and llm.pin_lora(1)
        llm.add_lora(second)
        with pytest.raises(InvalidRequestError, match="max_cpu_loras=2 has room for max_loras=1"):
            llm.pin_lora(2)
        assert generate(llm, PROMPTS, third) == expected[3]
        assert list(llm.llm_engine.model_executor.driver_worker.adapters._read) == [1, 3]  # pinned, and the newest
        assert generate(llm, PROMPTS, second) == expected[2]
        assert llm.remove_lora(1) and llm.list_loras() == {2, 3}
        # The same id again is another adapter, by its content: the KV of that is found, none of the first.
        hits = llm.llm_engine.stats().prefix_cache_hits_total
        assert generate(llm, PROMPTS, LoRARequest("again", 1, third.lora_path)) == expected[3]
        assert llm.llm_engine.stats().prefix_cache_hits_total > hits


def test_a_removed_adapter_serves_its_requests_to_their_ends(qwen3_folder, loras, expected):
    with LLM(str(qwen3_folder), **OPTIONS, **ADAPTING) as llm:
        engine = llm.llm_engine
        for number, lora in enumerate(loras):
            engine.add_request(str(number), PROMPTS[0], GREEDY, lora_request=lora)
        for lora in loras:
            assert engine.remove_lora(lora.lora_int_id)
        found = {}
        while engine.has_unfinished_requests():
            found |= {output.request_id: output.outputs[0].token_ids for output in engine.step() if output.finished}
        assert [[found[str(number)]] for number in range(3)] == [expected[number + 1][0] for number in range(3)]
        engine.add_lora(loras[0])
        assert list(engine.model_executor.driver_worker.adapters._read) == [4], "the removed ones are forgotten"


@pytest.mark.parametrize("change", ["gone", "changed"])
def test_a_folder_that_is_not_what_it_was(qwen3_folder, loras, expected, tmp_path, change):
    """A request whose adapter cannot be read again ends with the reason; others go on. Other content has other KV."""
    folder = tmp_path / "gone"
    shutil.copytree(loras[0].lora_path, folder)
    with LLM(str(qwen3_folder), **OPTIONS, **ADAPTING) as llm:
        gone = LoRARequest("gone", 9, str(folder))
        assert generate(llm, PROMPTS, gone) == expected[1]
        assert generate(llm, PROMPTS, loras[1]) == expected[2]  # the first is not kept
        shutil.rmtree(folder)
        if change == "changed":
            shutil.copytree(loras[2].lora_path, folder)
        params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
        outputs = llm.generate(PROMPTS[:2], params, use_tqdm=False, lora_request=[gone, loras[1]])
        assert outputs[0].outputs[0].finish_reason == "abort"
        assert "its adapter cannot be read again" in outputs[0].outputs[0].stop_reason
        assert change == "gone" or "has changed since it was added" in outputs[0].outputs[0].stop_reason
        assert [outputs[1].outputs[0].token_ids] == expected[2][1]


@pytest.mark.parametrize("executor", ["tensor", "pipeline"])
def test_several_workers(qwen3_folder, mixed, expected, monkeypatch, executor):
    use_threads(monkeypatch)
    sizes = {"tensor_parallel_size": 2} if executor == "tensor" else {"pipeline_parallel_size": 2}
    options = {**OPTIONS, **ADAPTING, **sizes, "max_loras": 2, "enable_sleep_mode": True}
    with LLM(str(qwen3_folder), **options) as llm:
        check(llm, mixed, expected)
        llm.sleep(2)
        llm.wake_up()
        check(llm, mixed, expected)


FUSED_NEOX = r"\.(query_key_value|dense|dense_h_to_4h|dense_4h_to_h)\.weight$"
FAMILIES = {
    "Llama": ({}, ALL),
    "Phi3": ({}, r"\.(qkv_proj|o_proj|gate_up_proj|down_proj)\.weight$"),
    "GPTNeoX": ({"num_key_value_heads": ..., "head_dim": ...} | HALF, FUSED_NEOX),
    "GPT2": (
        {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 40},
        r"\.(c_attn|c_proj|c_fc)\.weight$",
    ),
    "Granite": ({"residual_multiplier": 0.6, "attention_multiplier": 0.3}, ALL),
    "Glm": ({}, r"\.(q_proj|k_proj|v_proj|o_proj|gate_up_proj|down_proj)\.weight$"),
    "Gemma2": ({"sliding_window": 20}, ALL),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_familys_matrices(family, tmp_path):
    """Fused matrices, orders of heads, factors of residuals: an adapter's rows go where the weight's rows go."""
    sizes, targets = FAMILIES[family]
    base = tmp_path / "base"
    random_model(family, sizes if family == "GPT2" else SIZES | sizes).save_pretrained(base)
    write_tokenizer(base)
    transposed = ("c_attn.weight", "c_proj.weight", "c_fc.weight") if family == "GPT2" else ()
    adapter = write_adapter(tmp_path / "adapter", base, targets=targets, size=0.12, transposed=transposed)
    whole = merged(tmp_path / "merged", base, adapter, transposed)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, prompt_logprobs=0, logprobs=0)
    prompts = [[7 * place % 120 + 2 for place in range(start, start + 20)] for start in (0, 40)]

    def numbers(folder, lora=None, **options):
        options = OPTIONS | {"max_model_len": 60} | options
        with LLM(str(folder), **options) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=lora)
        found = [at for o in outputs for at in o.prompt_logprobs[1:]] + [
            at for o in outputs for at in o.outputs[0].logprobs
        ]
        return torch.tensor([next(iter(at.values())).logprob for at in found])

    expected, plain = numbers(whole), numbers(base)
    found = numbers(base, LoRARequest("x", 1, str(adapter)), **ADAPTING)
    assert (expected - plain).abs().max() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


def test_vectors(qwen3_folder, loras, tmp_path):
    folder = merged(tmp_path / "merged", qwen3_folder, tmp_path / loras[0].lora_path)
    options = OPTIONS | {"runner": "pooling", "convert": "embed"}
    with LLM(str(folder), **options) as llm:
        expected = [output.outputs.embedding for output in llm.embed(PROMPTS, use_tqdm=False)]
    with LLM(str(qwen3_folder), **options, **ADAPTING) as llm:
        found = [o.outputs.embedding for o in llm.embed(PROMPTS, use_tqdm=False, lora_request=loras[0])]
        plain = [o.outputs.embedding for o in llm.embed(PROMPTS, use_tqdm=False)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=0, atol=1e-4)
    assert (torch.tensor(plain) - torch.tensor(found)).abs().max() > 0.01


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_beside_quantized_matrices(qwen3_folder, loras, quantization):
    with LLM(str(qwen3_folder), quantization=quantization, **OPTIONS, **ADAPTING) as llm:
        plain, adapted = generate(llm, PROMPTS), generate(llm, PROMPTS, loras[0])
        assert plain != adapted
        assert generate(llm, [*PROMPTS, *PROMPTS], [None] * 3 + [loras[0]] * 3) == plain + adapted


def test_in_a_process_of_its_own(qwen3_folder, loras, expected):
    """Requests and calls cross to the engine's process."""
    options = {**OPTIONS, **ADAPTING, "data_parallel_size": 2}
    with LLM(str(qwen3_folder), **options) as llm:
        assert llm.add_lora(loras[0]) and llm.list_loras() == {1}
        assert generate(llm, PROMPTS, loras[0]) == expected[1]
        assert generate(llm, PROMPTS, loras[1]) == expected[2]
        assert llm.remove_lora(1)


async def stream(engine, prompt, lora):
    async for output in engine.generate(prompt, GREEDY, "x", lora_request=lora):
        found = output.outputs[0].token_ids
    return found


def test_an_engine_on_a_thread(qwen3_folder, loras, expected):
    import asyncio

    async def main():
        engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **OPTIONS, **ADAPTING))
        try:
            assert await engine.add_lora(loras[0]) and await engine.list_loras() == {1}
            assert [await stream(engine, PROMPTS[0], loras[0])] == expected[1][0]
            assert [await stream(engine, PROMPTS[0], loras[1])] == expected[2][0]
            assert await engine.remove_lora(1) and not await engine.remove_lora(1)
            with pytest.raises(ModelLoadError, match="is no folder"):
                await engine.add_lora(LoRARequest("x", 5, "/nowhere"))
            with pytest.raises(InvalidRequestError, match="is no folder"):
                await stream(engine, PROMPTS[0], LoRARequest("x", 5, "/nowhere"))
            assert [await stream(engine, PROMPTS[0], loras[1])] == expected[2][0]
        finally:
            await engine.shutdown()

    asyncio.run(main())


# -- what is refused -----------------------------------------------------------------------------------------------


def test_options_that_need_each_other():
    for options in ({"max_loras": 2}, {"max_lora_rank": 8}, {"max_cpu_loras": 2}):
        with pytest.raises(ConfigError, match="needs enable_lora=True"):
            EngineConfig(**options)
    with pytest.raises(ConfigError, match="max_cpu_loras .1. must be at least max_loras .2."):
        EngineConfig(enable_lora=True, max_loras=2, max_cpu_loras=1)


def test_requests_without_enable_lora(qwen3_folder, loras):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        for call in (lambda: generate(llm, PROMPTS, loras[0]), lambda: llm.add_lora(loras[0])):
            with pytest.raises(InvalidRequestError, match="needs an engine with enable_lora=True"):
                call()


@pytest.mark.parametrize("fields", [("", 1, "x"), ("a", 0, "x"), ("a", True, "x"), ("a", 1, ""), ("a\n", 1, "x")])
def test_wrong_requests(fields):
    with pytest.raises(InvalidRequestError, match="lora_"):
        LoRARequest(*fields)


def test_a_model_of_transformers(qwen3_folder):
    with pytest.raises(UnsupportedError, match="enable_lora is not there for .*transformers'"):
        LLM(str(qwen3_folder), model_impl="transformers", **OPTIONS, **ADAPTING)


def test_adapters_that_do_not_fit(qwen3_folder, loras, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(f"{loras[0].lora_path}/adapter_model.safetensors")
    prefix = "base_model.model.model.layers.0"
    settings = json.loads(Path(loras[0].lora_path, "adapter_config.json").read_text())
    faults = {
        f"unexpected tensor {prefix}.self_attn.q_proj.bias": {f"{prefix}.self_attn.q_proj.bias": torch.ones(4)},
        "unexpected tensor base_model.model.lm_head.lora_A.weight: matrices of": {
            "base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)
        },
        "unexpected tensor base_model.model.model.embed_tokens.lora_embedding_A": {
            "base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 64)
        },
        r"q_proj.lora_A.weight has shape .4, 60.; by the model and r it is .4, 64.": {
            f"{prefix}.self_attn.q_proj.lora_A.weight": torch.ones(4, 60)
        },
        r"v_proj.lora_B.weight has shape .31, 4.; by the model and r it is .32, 4.": {
            f"{prefix}.self_attn.v_proj.lora_B.weight": torch.ones(31, 4)
        },
        "missing tensor model.layers.0.mlp.up_proj.lora_B.weight": {f"{prefix}.mlp.up_proj.lora_B.weight": None},
        "missing tensors of k_proj, which target_modules names": {},
        "q_proj has rank 16, above max_lora_rank=8; raise it": {},
        "holds numbers that are not finite": {f"{prefix}.mlp.up_proj.lora_A.weight": torch.full((4, 64), torch.nan)},
        "q_proj.lora_A.weight is torch.int32, not floating point": {
            f"{prefix}.self_attn.q_proj.lora_A.weight": torch.ones(4, 64, dtype=torch.int32)
        },
    }
    with LLM(str(qwen3_folder), **OPTIONS, **ADAPTING) as llm:
        for number, (said, changes) in enumerate(faults.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            own, config = {**tensors, **changes}, dict(settings)
            if "target_modules" in said:
                config["target_modules"] = ["q_proj", "k_proj"]
                own = {name: tensor for name, tensor in own.items() if "k_proj" not in name}
            if "rank 16" in said:
                config["rank_pattern"] = {"layers.0.self_attn.q_proj": 16}
            save_file(
                {name: tensor for name, tensor in own.items() if tensor is not None},
                folder / "adapter_model.safetensors",
            )
            (folder / "adapter_config.json").write_text(json.dumps(config))
            with pytest.raises(ModelLoadError, match=said):
                llm.add_lora(LoRARequest("x", 1, str(folder)))
        (folder / "adapter_model.safetensors").write_bytes(b"nonsense")
        with pytest.raises(ModelLoadError, match="is damaged or incomplete"):
            llm.add_lora(LoRARequest("x", 1, str(folder)))
        (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
        with pytest.raises(ModelLoadError, match="pickled weights are not read"):
            llm.add_lora(LoRARequest("x", 1, str(folder)))
        assert llm.list_loras() == set()
