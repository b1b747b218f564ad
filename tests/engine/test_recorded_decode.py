"""Decode steps that are recorded and replayed on a CPU: bit for bit what eager ones give, whatever happens between."""

import contextlib
import dataclasses
import threading

import pytest
import torch
from kit.engine.parts import block_space_of, graphs_of, threads_of, use_ops
from kit.engine.prompts import random_prompts
from kit.folder.checkpoint import write_checkpoint

from lullm import LLM, SamplingParams
from lullm.ops.cpu import native
from lullm.ops.cpu.library import absence
from lullm.ops.cpu.recording import Recording
from lullm.ops.selection import NATIVE_CPU_OPS

pytestmark = pytest.mark.skipif(absence() is not None, reason="the native ops are not built here")

OPTIONS = {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 12, "max_num_batched_tokens": 48}
SMALL_POOL = {"num_gpu_blocks_override": 40, "block_size": 8, "preemption_mode": "swap"}
KINDS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.9, "top_p": 0.8, "seed": 3},
    {"temperature": 1.0, "top_k": 10, "n": 2, "seed": 3},
    {"temperature": 0.8, "presence_penalty": 0.5, "seed": 3},
    {"temperature": 0.0, "prompt_logprobs": 1},
    {"temperature": 0.7, "min_p": 0.1, "stop_token_ids": list(range(3, 60)), "seed": 3},
    {"temperature": 0.0, "ignore_eos": True},
    {"n": 3, "beam_width": 3, "ignore_eos": True},
]


def requests():
    return [
        (prompt, SamplingParams(max_tokens=16 + number % 23, **KINDS[number % len(KINDS)]))
        for number, prompt in enumerate(random_prompts(27, 60, seed=9))
    ]


def generate(llm):
    prompts, params = zip(*requests(), strict=True)
    outputs = llm.generate(prompts, list(params), use_tqdm=False)
    return [
        [
            (c.token_ids, c.finish_reason, c.cumulative_logprob, [list(p.items()) for p in c.logprobs or []])
            for c in output.outputs
        ]
        for output in outputs
    ]


@pytest.fixture
def replays(monkeypatch):
    """Grows by one with every replay."""
    found, replay = [], Recording.replay
    monkeypatch.setattr(Recording, "replay", lambda recording: found.append(recording) or replay(recording))
    return found


@pytest.fixture(scope="module")
def mistral_folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("mistral"), "mistral", sliding_window=32)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3", SMALL_POOL),
        ("qwen3", {"async_scheduling": True}),
        ("qwen3", {"dtype": "bfloat16", "async_scheduling": True, **SMALL_POOL}),
        ("llama", {"dtype": "bfloat16", "enable_prefix_caching": False}),
        ("mistral", {"dtype": "bfloat16"}),
        ("mistral", SMALL_POOL),
        ("mixed", SMALL_POOL),
        ("mixed", {"dtype": "bfloat16", "async_scheduling": True}),
        ("qwen3", {"quantization": "int8", "dtype": "bfloat16"}),
        ("llama", {"quantization": "int4", **SMALL_POOL}),
        ("qwen3", {"kv_cache_dtype": "int8", "dtype": "bfloat16", **SMALL_POOL}),
        ("mixed", {"kv_cache_dtype": "fp8", "calculate_kv_scales": True}),
    ],
    ids=str,
)
def test_replay_equals_eager_bit_for_bit(family, options, request, replays):
    folder = str(request.getfixturevalue(f"{family}_folder"))
    with LLM(folder, **{**OPTIONS, **options}, enforce_eager=True) as llm:
        expected = generate(llm)
        assert graphs_of(llm).sizes == [] and not replays
    with LLM(folder, **{**OPTIONS, **options}) as llm:
        assert generate(llm) == expected
        assert graphs_of(llm).refusal is None and len(replays) > 30
        if "num_gpu_blocks_override" in options:
            assert llm.llm_engine.stats().num_preemptions > 0
        block_space_of(llm).check_conservation()


def test_every_size_is_recorded_once(qwen3_folder, replays):
    params = [SamplingParams(temperature=0, max_tokens=4 + 3 * i, ignore_eos=True) for i in range(12)]
    found = {}
    for enforce_eager in (True, False):
        with LLM(str(qwen3_folder), **OPTIONS, enforce_eager=enforce_eager) as llm:
            outputs = [llm.generate(random_prompts(12, 60), params, use_tqdm=False) for _ in range(2)]
            found[enforce_eager] = [o.outputs[0].token_ids for run in outputs for o in run]
            if not enforce_eager:
                assert graphs_of(llm).sizes == list(range(1, 13))
    assert found[True] == found[False] and len({id(recording) for recording in replays}) == 12


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_recordings_outlive_every_sleep(qwen3_folder, replays, quantization):
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    prompts = random_prompts(5, 60)
    changed = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))

    def tokens(llm):
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outputs]

    found = {}
    for enforce_eager in (True, False):
        with LLM(
            str(qwen3_folder), **OPTIONS, enable_sleep_mode=True, quantization=quantization, enforce_eager=enforce_eager
        ) as llm:
            runs = [tokens(llm)]
            recorded = None if enforce_eager else dict(graphs_of(llm)._captured)
            for call in ({"level": 1}, {"level": 2}, {"level": 1, "tags": ["kv_cache"]}, {"level": 2, "backup": "ram"}):
                llm.sleep(**call)
                assert llm.collective_rpc("resident_bytes")[0].get("graphs", 0) == 0
                llm.wake_up()
                runs.append(tokens(llm))
            llm.update_weights([("model.layers.1.self_attn.o_proj.weight", changed)])
            runs.append(tokens(llm))
            llm.sleep(1)
            llm.wake_up()
            runs.append(tokens(llm))
            llm.collective_rpc("reload_weights")
            runs.append(tokens(llm))
            if recorded is not None:
                assert recorded and dict(graphs_of(llm)._captured) == recorded, "nothing is recorded anew"
                assert len({id(recording) for recording in replays}) == len(recorded)
                assert llm.collective_rpc("resident_bytes")[0]["graphs"] > 0
        found[enforce_eager] = runs
    assert found[True] == found[False]
    assert all(run == found[True][0] for run in (*found[True][1:5], found[True][-1]))
    assert found[True][5] == found[True][6] != found[True][0]


def test_two_engines_at_the_same_time(qwen3_folder, llama_folder):
    """Each on a thread of its own, recording and replaying."""
    # The number of native threads is the process's, and has a say in the last bits: not another one for each.
    options = {"threads": 2, "enable_prefix_caching": False}
    cases = [(qwen3_folder, options), (llama_folder, {**options, "dtype": "bfloat16"})]
    expected, found = [], [None, None]
    for folder, options in cases:
        with LLM(str(folder), **{**OPTIONS, **options}, enforce_eager=True) as llm:
            expected.append(generate(llm))

    def run(index):
        found[index] = [generate(engines[index]) for _ in range(3)]

    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(LLM(str(folder), **{**OPTIONS, **options})) for folder, options in cases]
        threads = [threading.Thread(target=run, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(graphs_of(engine).refusal is None and graphs_of(engine).sizes for engine in engines)
    assert found == [[answer] * 3 for answer in expected]


def test_a_change_of_the_number_of_threads(qwen3_folder, replays):
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    found = []
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        threads = threads_of(llm)
        for num_threads in (1, 4, 2):
            threads.num_threads = num_threads
            outputs = llm.generate(random_prompts(4, 60), params, use_tqdm=False)
            found.append([o.outputs[0].token_ids for o in outputs])
    assert found[0] == found[1] == found[2] and len(replays) > 60


def rms_norm_of_torch(x, weight, eps):
    return native.rms_norm(x, weight, eps) * 1.0


@pytest.mark.parametrize(
    ("options", "ops", "refusal"),
    [
        ({}, {"rms_norm": rms_norm_of_torch}, "mul is torch's"),
        ({}, {"draw_tokens": lambda logits, table, writes: logits.argmax(-1)}, "argmax is torch's"),
        ({"dtype": "float16"}, {}, "is torch's"),
    ],
    ids=["op", "draw", "float16"],
)
def test_a_model_with_an_operation_of_torch_stays_eager(qwen3_folder, monkeypatch, replays, options, ops, refusal):
    table = dataclasses.replace(NATIVE_CPU_OPS, **ops)
    use_ops(monkeypatch, table)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    found = {}
    for enforce_eager in (True, False):
        with LLM(str(qwen3_folder), **{**OPTIONS, **options}, enforce_eager=enforce_eager) as llm:
            outputs = llm.generate(random_prompts(5, 60), params, use_tqdm=False)
            found[enforce_eager] = [(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outputs]
            if not enforce_eager:
                graphs = graphs_of(llm)
                assert graphs.refusal is not None and refusal in graphs.refusal and graphs.sizes == []
    assert found[True] == found[False] and not replays


def test_torch_attention_records_nothing(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS, attention_backend="torch") as llm:
        llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
        assert graphs_of(llm).sizes == []
