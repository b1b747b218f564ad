"""Decode graphs, staging and feedback on a fake accelerator: a whole engine, without a line that only a GPU runs."""

import dataclasses

import pytest
import torch
from kit.device.fake_device import FAKE_OPS, FakeDevice, kernel
from kit.engine.parts import block_space_of, kv_scales_of, use_device, use_host, use_ops
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.device.cpu import CpuDevice
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS
from lullm.sampling.sampler import draw_tokens_
from lullm.step.graphs import DecodeGraphs, DecodeOutput, decode_sizes

OPS_ON_HOST = dataclasses.replace(TORCH_CPU_OPS, rope_and_cache=REFERENCE_OPS.rope_and_cache)
OPTIONS = {"dtype": "float32", "max_model_len": 128, "max_num_batched_tokens": 512, "max_num_seqs": 12}


def test_sizes():
    device = FakeDevice()
    assert decode_sizes(device, 1) == [1]
    assert decode_sizes(device, 3) == [1, 2, 3]
    assert decode_sizes(device, 8) == [1, 2, 4, 8]
    assert decode_sizes(device, 20) == [1, 2, 4, 8, 16, 20]
    assert decode_sizes(device, 256)[:6] == [1, 2, 4, 8, 16, 24] and len(decode_sizes(device, 256)) == 35
    assert list(decode_sizes(CpuDevice(), 20)) == list(range(1, 21)), "a CPU records what it meets"


def test_recorded_large_to_small_after_a_run_of_each():
    device = FakeDevice()
    log = []

    def compute(size):
        log.append(size)
        return DecodeOutput(torch.zeros(size, 4), torch.zeros(size, dtype=torch.int64))

    graphs = DecodeGraphs(device, compute)
    graphs.capture([1, 2, 4], lambda size: log.append(f"clear {size}"))
    assert log == ["clear 4", 4, 4, "clear 2", 2, 2, "clear 1", 1, 1]
    assert graphs.sizes == [1, 2, 4]
    assert device.calls[-1] == ("synchronize", None), "what is logged as their memory is all of it"
    log.clear()
    first = graphs.run(2)
    assert graphs.run(2) is first, "at the same addresses"
    assert [name for name, _ in device.calls].count("replay") == 2
    assert log == [], "a replay runs none of the code that was recorded"
    graphs.run(3)
    assert log[-1] == 3 and [name for name, _ in device.calls].count("replay") == 2, "not recorded: as it is"


def requests():
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.0, "logprobs": 2},
        {"temperature": 0.9, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 10, "n": 2},
        {"temperature": 0.8, "presence_penalty": 0.5},
        {"temperature": 0.0, "prompt_logprobs": 1},
        {"temperature": 1.2, "stop_token_ids": list(range(3, 60))},
    ]
    return [
        (prompt, SamplingParams(max_tokens=16 + number % 17, seed=number, **kinds[number % len(kinds)]))
        for number, prompt in enumerate(random_prompts(16, 60, seed=9))
    ]


def run(folder, **options):
    prompts, params = zip(*requests(), strict=True)
    with LLM(str(folder), **{**OPTIONS, **options}) as llm:
        outputs = llm.generate(prompts, list(params), use_tqdm=False)
        block_space_of(llm).check_conservation()
    return [
        [
            (c.token_ids, c.finish_reason, c.cumulative_logprob, [list(p.items()) for p in c.logprobs or []])
            for c in o.outputs
        ]
        for o in outputs
    ]


@pytest.fixture
def device(monkeypatch):
    device = FakeDevice()
    use_device(monkeypatch, device)
    use_ops(monkeypatch, FAKE_OPS)
    return device


def on_device(folder, device, **options):
    return run(folder, num_gpu_blocks_override=options.pop("num_gpu_blocks_override", 200), **options)


@pytest.mark.half
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("draws_on_device", [False, True])
def test_replay_equals_eager_bit_for_bit(qwen3_folder, device, monkeypatch, async_scheduling, draws_on_device):
    if draws_on_device:
        use_ops(monkeypatch, dataclasses.replace(FAKE_OPS, draw_tokens=kernel(draw_by_table)))
    eager = on_device(qwen3_folder, device, enforce_eager=True, async_scheduling=async_scheduling)
    assert ("capture", None) not in device.calls and ("replay", None) not in device.calls
    device.calls.clear()
    assert on_device(qwen3_folder, device, async_scheduling=async_scheduling) == eager
    names = [name for name, _ in device.calls]
    assert names.count("capture") == len(decode_sizes(device, 12)) and names.count("replay") > 15
    if async_scheduling:
        assert tokens_of(eager) == tokens_of(on_device(qwen3_folder, device, async_scheduling=False))


@pytest.mark.parametrize("family", ["qwen3", "mixed"])
def test_the_device_says_what_the_host_says(family, request, device):
    folder = request.getfixturevalue(f"{family}_folder")
    found = on_device(folder, device, async_scheduling=True)
    device.calls.clear()
    found_small = on_device(
        folder, device, async_scheduling=True, num_gpu_blocks_override=40, block_size=8, preemption_mode="swap"
    )
    assert ("on_side_stream", None) in device.calls, "swapped out as late as the step allows"
    with pytest.MonkeyPatch.context() as patch:
        patch.undo()
        use_host(patch)
        use_ops(patch, TORCH_CPU_OPS)
        expected = tokens_of(run(folder))
    assert tokens_of(found) == expected and tokens_of(found_small) == expected


@pytest.mark.parametrize("prompts", [random_prompts(6, 60), [[7], [9], [11]]], ids=["prompts", "a decode first"])
def test_scales_of_an_fp8_cache(qwen3_folder, device, prompts):
    """Found in a step that is not replayed, padding left out; the graphs, recorded before, read them at their place."""
    found = []
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    sizes = {**OPTIONS, "num_gpu_blocks_override": 200, "kv_cache_dtype": "fp8", "calculate_kv_scales": True}
    for enforce_eager in (True, False):
        with LLM(str(qwen3_folder), **sizes, enforce_eager=enforce_eager, async_scheduling=True) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            scales = [s.k_scale.tolist() for s in kv_scales_of(llm)]
            found.append(([output.outputs[0].token_ids for output in outputs], scales))
    assert found[0] == found[1] and [name for name, _ in device.calls].count("replay") > 10
    with pytest.MonkeyPatch.context() as patch:
        use_host(patch)
        use_ops(patch, OPS_ON_HOST)
        with LLM(str(qwen3_folder), **sizes) as llm:
            llm.generate(prompts, params, use_tqdm=False)
            on_host = [s.k_scale.tolist() for s in kv_scales_of(llm)]
    assert scales[0] == pytest.approx(on_host[0]) and 1.0 not in scales[0]


def tokens_of(outputs):
    return [[completion[:2] for completion in output] for output in outputs]


def draw_by_table(logits, table, writes_logits):
    """What `Ops.draw_tokens` does, by the sampler's own stages."""
    from kit.sched.plans import new_draw

    columns = (table.temperatures, table.top_k, table.top_p, table.min_p_floors)
    draws = [
        new_draw(temperature=t, top_k=k if k < logits.shape[1] else -1, top_p=p) if t > 0 else new_draw(temperature=0.0)
        for t, k, p, _ in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return draw_tokens_(logits if writes_logits else logits.clone(), draws, table.keys)
