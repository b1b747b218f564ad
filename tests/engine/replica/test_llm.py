"""`LLM(data_parallel_size=2)`: every call gives what one engine gives, and what goes wrong is said once."""

import gc
import os
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest
from kit.engine.async_client import OPTIONS
from safetensors.torch import load_file

from lullm import LLM, LLMEngine, SamplingParams
from lullm.config.engine import EngineConfig
from lullm.errors import (
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    UnsupportedError,
)

DRAWN = SamplingParams(n=2, temperature=0.8, seed=11, max_tokens=20, ignore_eos=True, logprobs=2, prompt_logprobs=1)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = ["the quick brown fox", "hello world", "a b c", "one two three", [5, 6, 7, 8], "the lazy dog"]
TALK = [[{"role": "user", "content": text}] for text in ("hello", "a b c d")]
ENGINE = OPTIONS | {"threads": 1, "convert": "embed", "num_gpu_blocks_override": 96}


def is_running(pid):
    """Whether there is such a process, or its remains."""
    return Path(f"/proc/{pid}").exists()


def calls(llm):
    """What a script may ask for."""
    return {
        "generate": [
            (output.prompt_token_ids, output.prompt_logprobs, output.outputs)
            for output in llm.generate(PROMPTS, DRAWN, use_tqdm=False)
        ],
        "chat": [output.outputs for output in llm.chat(TALK, GREEDY, use_tqdm=False)],
        "beams": [output.outputs for output in llm.beam_search(PROMPTS[:2], 3, 8)],
        "embed": [output.outputs.embedding for output in llm.embed(PROMPTS, use_tqdm=False)],
        "score": [output.outputs.score for output in llm.score("hello", PROMPTS[:3], use_tqdm=False)],
    }


def greedy(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def changed(folder):
    """Weights after a training step: (name, tensor) of all."""
    return [(name, tensor * 1.2) for name, tensor in sorted(load_file(folder / "model.safetensors").items())]


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """What one engine gives: to all calls, greedily, and with the changed weights."""
    with LLM(str(qwen3_folder), **ENGINE) as llm:
        found = calls(llm), greedy(llm)
        assert llm.update_weights(changed(qwen3_folder)) > 30
        return *found, greedy(llm)


@pytest.fixture(scope="module")
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), data_parallel_size=2, **ENGINE) as llm:
        yield llm
        pids, engine = llm.collective_rpc(pid_of_worker), llm.llm_engine
    llm.shutdown()
    assert not any(map(is_running, pids))
    for call in (
        engine.check_health,
        lambda: engine.sleep(1),
        lambda: engine.add_request("x", "hello"),
        llm.get_metrics,
        llm.is_sleeping,
    ):
        with pytest.raises(EngineDeadError, match="shut down"):
            call()


def test_every_call_gives_what_one_engine_gives(llm, expected):
    assert calls(llm) == expected[0]
    metrics = {metric.name: metric for metric in llm.get_metrics() if "finished_reason" not in metric.labels}
    assert metrics["vllm:request_params_n"].count == len(PROMPTS) + len(TALK) + 2
    assert metrics["vllm:generation_tokens"].value >= 20 * 2 * len(PROMPTS)


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_in_the_middle(llm, expected, level):
    engine = llm.llm_engine
    if level == 1:
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(f"own-{number}", prompt, GREEDY)  # `LLM` counts its own from 0
        while not engine.stats().num_running:
            time.sleep(0.001)
    report = llm.sleep(level, mode="keep")
    assert report.tags == llm.sleeping_tags == ("weights", "kv_cache") and llm.is_sleeping()
    with pytest.raises(EngineAsleepError):
        llm.generate("late", GREEDY, use_tqdm=False)
    assert llm.wake_up().tags == report.tags and llm.sleep_state == "awake"
    if level == 2:
        assert greedy(llm) == expected[1]
        return
    found = {}
    while engine.has_unfinished_requests():
        found.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
    assert [found[f"own-{number}"] for number in range(len(PROMPTS))] == expected[1]


def test_weights_reach_all(llm, expected, qwen3_folder):
    try:
        assert llm.update_weights(iter(changed(qwen3_folder))) > 30
        assert greedy(llm) == expected[2]
        assert llm.collective_rpc("modified_weights")[0] == llm.collective_rpc("modified_weights")[1]
    finally:
        assert llm.collective_rpc("reload_weights") == [None, None]
    assert greedy(llm) == expected[1]
    llm.update_weights(iter(changed(qwen3_folder)))
    llm.reload_weights(qwen3_folder)
    assert greedy(llm) == expected[1]


def test_an_update_that_fails_says_once_why(llm, expected, qwen3_folder):
    norm = ("model.norm.weight", changed(qwen3_folder)[-1][1])
    with pytest.raises(ModelLoadError, match="stay so: model.norm.weight") as info:
        llm.update_weights([norm, ("model.norm.wight", norm[1]), norm])
    assert "engine 0" not in str(info.value), "it is the caller's mistake"

    def break_off():
        yield norm
        raise RuntimeError("the trainer stumbled")

    with pytest.raises(RuntimeError, match="stumbled") as info:
        llm.update_weights(break_off())
    assert "model.norm.weight" in info.value.__notes__[0]
    for wrong in (("model.norm.weight", 3), (3, norm[1]), 5):
        with pytest.raises(InvalidRequestError, match="pairs of a name and a tensor"):
            llm.update_weights([wrong])
    llm.sleep(1)
    with pytest.raises(EngineAsleepError):
        llm.update_weights([norm])
    llm.wake_up()
    llm.collective_rpc("reload_weights")
    assert llm.update_weights([]) == 0
    assert greedy(llm) == expected[1]


def count_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_functions_and_profiles(llm, tmp_path):
    first, second = llm.apply_model(count_parameters)
    assert first == second > 10_000
    assert len(set(llm.collective_rpc(pid_of_worker))) == 2
    with pytest.raises(UnsupportedError, match="top level of a module"):
        llm.collective_rpc(lambda worker: 0)
    llm.start_profile(tmp_path)
    llm.generate("hello", GREEDY, use_tqdm=False)
    assert llm.stop_profile().parent == tmp_path / "engine-0"
    assert [len(list((tmp_path / f"engine-{number}").iterdir())) for number in range(2)] == [1, 1]


def pid_of_worker(worker):
    return os.getpid()


def test_a_model_without_experts(llm):
    assert llm.expert_load().tokens == {}
    with pytest.raises(ConfigError, match="has no experts"):
        llm.rebalance_experts()


def test_requests_that_are_refused_and_aborted(llm, expected):
    engine = llm.llm_engine
    with pytest.raises(InvalidRequestError, match="sequences"):
        llm.generate(["hello", "a b"], GREEDY.replace(n=500, temperature=1.0), use_tqdm=False)
    assert not engine.has_unfinished_requests()
    engine.add_request("twin", "hello", GREEDY.replace(max_tokens=200))
    with pytest.raises(InvalidRequestError, match="'twin' is already in use"):
        engine.add_request("twin", "hello", GREEDY)
    engine.abort_request("twin")
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    assert outputs[-1].outputs[0].finish_reason == "abort" and engine.step() == []
    engine.add_request("unwanted", "hello", GREEDY)
    engine.abort_request("unwanted", wants_output=False)
    assert engine.get_num_unfinished_requests() == 0 and engine.unfinished_request_ids() == []
    assert greedy(llm) == expected[1]


def test_an_id_that_is_used_again_has_its_own_outputs(llm):
    engine = llm.llm_engine
    for round_s in (*(0.002 * number for number in range(20)), 0.2):  # what came of the first is there, or on its way
        engine.add_request("again", "the quick brown fox", GREEDY)
        time.sleep(round_s)
        engine.abort_request("again", wants_output=False)
        engine.add_request("again", "a b c", GREEDY)
        outputs = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
        assert {output.prompt for output in outputs} == {"a b c"} and outputs[-1].finished


def test_a_fork_leaves_the_engines_alone(llm, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in (lambda: llm.generate("hello", GREEDY, use_tqdm=False), lambda: llm.sleep(1)):
                try:
                    call()
                except UnsupportedError as error:
                    code = 0 if "of which this is a fork" in str(error) else 2
            llm.shutdown()
            llm.llm_engine._end()
            llm.llm_engine._client.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert greedy(llm) == expected[1]


def test_ctrl_c(llm, expected):
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        for _ in range(1000):
            llm.generate(PROMPTS, GREEDY.replace(max_tokens=200), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert greedy(llm) == expected[1]


def test_an_engine_that_is_dropped_leaves_no_process(qwen3_folder):
    llm = LLM(str(qwen3_folder), data_parallel_size=2, load_format="dummy", **ENGINE)
    pids = llm.collective_rpc(pid_of_worker)
    assert all(map(is_running, pids))
    del llm
    gc.collect()
    assert not any(map(is_running, pids))


def test_an_engine_that_is_stopped_and_one_that_is_killed(qwen3_folder, expected):
    """Requests of each fail with its own error, the others' end with their tokens, and no process stays."""
    llm = LLM(str(qwen3_folder), data_parallel_size=2, worker_timeout=2.0, **ENGINE)
    pids, engine = llm.collective_rpc(pid_of_worker), llm.llm_engine
    os.kill(pids[0], signal.SIGSTOP)
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, GREEDY)
    found, errors = {}, []
    while engine.has_unfinished_requests():
        try:
            found.update({output.request_id: output.outputs[0].token_ids for output in engine.step()})
        except EngineDeadError as error:
            errors.append(str(error))
    assert found and found == {name: expected[1][int(name)] for name in found}
    assert len(errors) == len(PROMPTS) - len(found)
    assert errors[0].startswith("engine 0 of 2: the engine's process has given no sign of life for 2 s")
    os.kill(pids[1], signal.SIGKILL)
    for call in (llm.get_metrics, llm.is_sleeping, lambda: llm.sleep_state, lambda: llm.generate("late")):
        with pytest.raises(EngineDeadError, match="engine 0 of 2"):
            call()
    llm.shutdown()
    assert not any(map(is_running, pids))


def test_what_is_refused(qwen3_folder):
    with pytest.raises(UnsupportedError, match="an LLMEngine is one"):
        LLMEngine(EngineConfig(data_parallel_size=2))
    with pytest.raises(ConfigError, match="thread that watches the clock"):
        LLM("demo", data_parallel_size=2, enable_sleep_mode=True, sleep_after="60s:1")
    with pytest.raises(ConfigError, match="more processes than workers"):
        LLM("demo", data_parallel_size=2, distributed_executor_backend="external_launcher")


@pytest.mark.slow
def test_replicas_of_stages_of_workers(qwen3_folder, expected):
    """Data, pipeline and tensor parallel at once: eight workers."""
    options = {"data_parallel_size": 2, "pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    with LLM(str(qwen3_folder), **ENGINE | options) as llm:
        assert len(set(llm.collective_rpc(pid_of_worker))) == 8
        assert greedy(llm) == expected[1]
        llm.sleep(1)
        llm.wake_up()
        assert greedy(llm) == expected[1]
        assert llm.update_weights(changed(qwen3_folder)) > 30
        assert greedy(llm) == expected[2]
