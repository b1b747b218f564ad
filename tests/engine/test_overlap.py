"""Overlapped steps: the next one is planned and launched before the tokens of this one are known. Nothing else changes.

On a CPU a launched step computes when its result is asked for: by then the next plan has been made, with placeholders.
"""

import asyncio
import random

import pytest
from kit.engine.parts import block_space_of, steps_in_flight_of
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.config.engine import EngineConfig
from lullm.engine.async_llm_engine import AsyncLLMEngine
from lullm.types.monitor.stats import EngineStats
from lullm.types.sampling_params import OutputKind

OPTIONS = {"dtype": "float32", "max_model_len": 128, "max_num_batched_tokens": 48, "max_num_seqs": 16}


def workload(num: int, seed: int) -> list[tuple[list[int], SamplingParams]]:
    """Greedy and drawn, stopped by ids, strings and lengths, with forks, beams, penalties and log-probabilities."""
    rng = random.Random(seed)
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.0, "ignore_eos": True},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 20, "n": 3},
        {"temperature": 0.8, "logprobs": 2},
        {"temperature": 0.0, "prompt_logprobs": 1},
        {"temperature": 1.2, "stop": list("abdeghilmo")},
        {"temperature": 1.2, "stop_token_ids": list(range(3, 40))},
        {"temperature": 1.0, "n": 2, "stop": list("acefknprst")},
    ]
    rare = [
        {"temperature": 0.7, "presence_penalty": 0.5},
        {"temperature": 0.7, "min_tokens": 1, "stop_token_ids": list(range(3, 60))},
        {"beam_width": 2},
        {"temperature": 0.5, "bad_words": ["a"]},
    ]
    requests = []
    for number, prompt in enumerate(random_prompts(num, 60, seed)):
        chosen = rng.choice(rare if number % 16 == 7 else kinds)
        drawn = {} if "beam_width" in chosen else {"seed": number}
        requests.append((prompt, SamplingParams(max_tokens=rng.choice([1, 2, 12, 30]), **chosen, **drawn)))
    return requests


def run(
    folder, requests, disturb=lambda llm, step: None, prepare=lambda llm: None, **options
) -> tuple[dict, int, EngineStats]:
    """What callers were told, by request and completion; how many steps ran ahead. Requests arrive while others run."""
    rng = random.Random(1)
    deltas: dict[tuple[str, int], list] = {}
    ends: dict[tuple[str, int], str] = {}
    with LLM(str(folder), **{**OPTIONS, **options}) as llm:
        engine = llm.llm_engine
        prepare(llm)
        waiting = list(enumerate(requests))
        num_ahead = step = 0
        while waiting or engine.has_unfinished_requests():
            for _ in range(min(rng.randrange(3), len(waiting))):
                number, (prompt, params) = waiting.pop(0)
                kind = OutputKind.FINAL_ONLY if params.beam_width else OutputKind.DELTA
                engine.add_request(str(number), prompt, params.replace(output_kind=kind))
            for output in engine.step():
                for completion in output.outputs:
                    key = output.request_id, completion.index
                    entry = deltas.setdefault(key, [[], "", []])
                    entry[0] += completion.token_ids
                    entry[1] += completion.text
                    entry[2] += completion.logprobs or []
                    if completion.finish_reason:
                        assert key not in ends, "one end"
                        ends[key] = completion.finish_reason, completion.stop_reason
            num_ahead += len(steps_in_flight_of(engine))
            disturb(llm, step)
            step += 1
        block_space_of(engine).check_conservation()
        assert block_space_of(engine).num_used_blocks == 0 and not steps_in_flight_of(engine)
        stats = engine.stats()
    tokens = {key: (entry[0], entry[1], [list(row) for row in entry[2]], ends[key]) for key, entry in deltas.items()}
    return tokens, num_ahead, stats


@pytest.fixture(scope="module")
def requests():
    return workload(64, seed=5)


@pytest.fixture(scope="module")
def expected(qwen3_folder, requests):
    tokens, num_ahead, _ = run(qwen3_folder, requests)
    assert num_ahead == 0
    assert {end for *_, (end, _) in tokens.values()} == {"stop", "length"}
    assert any(isinstance(reason, str) for *_, (_, reason) in tokens.values()), "a stop string was met"
    return tokens


def test_the_same_deltas(qwen3_folder, requests, expected):
    tokens, num_ahead, _ = run(qwen3_folder, requests, async_scheduling=True)
    assert tokens == expected
    assert num_ahead > 50


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_with_preemption(qwen3_folder, requests, expected, mode):
    options = {"num_gpu_blocks_override": 40, "block_size": 8, "preemption_mode": mode, "async_scheduling": True}
    tokens, num_ahead, stats = run(qwen3_folder, requests, **options)
    assert tokens == expected
    assert num_ahead > 20 and stats.num_preemptions > 0


def test_with_sleep_in_between(qwen3_folder, requests, expected):
    def disturb(llm, step):
        if step % 10 == 9:
            llm.sleep(level=1 + step % 20 // 10)
            assert not steps_in_flight_of(llm), "nothing runs in one's sleep"
            llm.wake_up()

    options = {"enable_sleep_mode": True, "async_scheduling": True}
    assert run(qwen3_folder, requests, disturb, **options)[0] == expected


def test_with_aborts(qwen3_folder, requests, expected):
    rng = random.Random(2)
    chosen = []  # in order: a set of strings has another one in each process

    def disturb(llm, step):
        ids = llm.llm_engine.unfinished_request_ids()
        if ids and rng.random() < 0.3:
            chosen.append(rng.choice(ids))
            llm.llm_engine.abort_request(rng.choice(chosen))

    tokens, _, stats = run(qwen3_folder, requests, disturb, async_scheduling=True)
    assert stats.finished_total["abort"] > 3
    for (request_id, index), (token_ids, *_, end) in tokens.items():
        whole = expected.get((request_id, index))
        if end[0] == "abort":
            assert whole is None or token_ids == whole[0][: len(token_ids)], "what was told before was right"
        else:
            assert tokens[request_id, index] == whole


def test_prefill_first(qwen3_folder, requests, expected):
    options = {"enable_chunked_prefill": False, "max_num_batched_tokens": 128, "async_scheduling": True}
    assert run(qwen3_folder, requests, **options)[0] == expected


def test_the_llm_face(qwen3_folder):
    prompts = random_prompts(8, 40)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    runs = []
    for async_scheduling in (False, True):
        with LLM(str(qwen3_folder), **OPTIONS, async_scheduling=async_scheduling) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            runs.append([output.outputs[0].token_ids for output in outputs])
    assert runs[0] == runs[1]


def test_streams_beside_each_other_and_gone_ones(qwen3_folder, requests, expected):
    """Behind asyncio; every third caller goes away in the middle."""

    async def call(engine, number):
        prompt, params = requests[number]
        told: list[int] = []
        stream = engine.generate(prompt, params.replace(output_kind=OutputKind.DELTA), str(number))
        async for output in stream:
            told += [t for completion in output.outputs if completion.index == 0 for t in completion.token_ids]
            if number % 3 == 0 and len(told) > 3:
                break
        await stream.aclose()
        return told

    async def run_all():
        engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **OPTIONS, async_scheduling=True))
        try:
            return await asyncio.gather(*(call(engine, number) for number in numbers))
        finally:
            await engine.shutdown()

    numbers = [number for number, (_, params) in enumerate(requests) if not params.beam_width][:24]
    for number, told in zip(numbers, asyncio.run(run_all()), strict=True):
        whole = expected[str(number), 0][0]
        assert told == (whole[: len(told)] if number % 3 == 0 else whole)
