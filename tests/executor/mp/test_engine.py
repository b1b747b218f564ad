"""Engines whose worker is another process: the tokens of one in this process, and what becomes of it when that dies."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from kit.engine.async_client import collect, tokens
from kit.engine.prompts import random_prompts
from kit.ready_process import ReadyPopen
from kit.running import running

from lullm import LLM, SamplingParams, StructuredOutputsParams
from lullm.config.engine import EngineConfig
from lullm.engine.async_llm_engine import AsyncLLMEngine
from lullm.errors import (
    ConfigError,
    EngineAsleepError,
    InvalidRequestError,
    ModelLoadError,
    UnsupportedError,
    WorkerLostError,
)
from lullm.types.sampling_params import OutputKind
from lullm.worker.remote_methods import call_with_model

OPTIONS = {"dtype": "float32", "max_model_len": 128, "enable_sleep_mode": True, "num_gpu_blocks_override": 24}
MP = {**OPTIONS, "distributed_executor_backend": "mp"}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, n=2, logprobs=2),
    SamplingParams(temperature=1.0, seed=3, max_tokens=20, ignore_eos=True, presence_penalty=0.5, prompt_logprobs=1),
    SamplingParams(temperature=0.0, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="[ab]{4,8}")),
]
PROMPTS = random_prompts(8, 60)
NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), **MP) as llm:
        yield llm


@pytest.fixture(scope="module")
def golden(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        return answers(llm)


def answers(llm):
    """A generation with preemption, and a sleep and new weights in the middle of another; then all is as before."""
    engine = llm.llm_engine
    found = [llm.generate(PROMPTS, params, use_tqdm=False) for params in PARAMS]
    engine.add_request("x", PROMPTS[0], PARAMS[1])
    engine.step()
    llm.explain_sleep()
    llm.sleep(backup="ram")
    with pytest.raises(EngineAsleepError):
        llm.update_weights([(NORM, torch.ones(64))])
    llm.wake_up()
    engine.step()
    assert llm.update_weights((name, tensor) for name, tensor in [(NORM, torch.linspace(0.5, 1.5, 64))]) == 1
    llm.sleep(level=2, tags=["kv_cache"])
    llm.wake_up()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    llm.collective_rpc("reload_weights")
    completions = [c for each in [*found, outputs] for output in each for c in output.outputs]
    return [(c.token_ids, c.logprobs) for c in completions]


def test_the_same_tokens_and_log_probabilities(llm, golden):
    assert llm.llm_engine.model_executor.pids != [os.getpid()]
    assert answers(llm) == golden


def test_two_workers_have_the_tokens_and_the_room_of_one(qwen3_folder, golden):
    options = {**OPTIONS, "num_gpu_blocks_override": None, "kv_cache_memory_bytes": 1 << 20, "swap_space": 1 / 1024}
    with LLM(str(qwen3_folder), **options) as llm:
        room = blocks(llm)
    with LLM(str(qwen3_folder), **options, tensor_parallel_size=2) as llm:
        assert blocks(llm) == room
    with LLM(str(qwen3_folder), **OPTIONS, tensor_parallel_size=2) as llm:
        assert len(set(llm.llm_engine.model_executor.pids)) == 2
        assert [ids for ids, _ in answers(llm)] == [ids for ids, _ in golden]
        first, second = llm.collective_rpc(cores)
        assert first == second or not first & second


def blocks(llm):
    stats = llm.llm_engine.stats()
    return stats.num_blocks, stats.num_host_blocks


def cores(worker):
    return os.sched_getaffinity(0)


def test_weights_that_do_not_fit_are_refused_as_in_process(llm):
    with pytest.raises(ModelLoadError, match="nothing.weight"):
        llm.update_weights([(NORM, torch.ones(64)), ("nothing.weight", torch.ones(64))])
    llm.collective_rpc("reload_weights")


def test_calls_by_name_and_by_function(llm):
    (found,) = llm.collective_rpc("resident_bytes")
    assert found["weights"] > 0
    assert llm.collective_rpc(hidden_size) == [64]
    with pytest.raises(UnsupportedError, match="sends no code to other processes"):
        llm.collective_rpc(lambda worker: 1)
    with pytest.raises(UnsupportedError, match="driver_worker is in another process"):
        _ = llm.llm_engine.model_executor.driver_worker


def test_a_function_of_the_model_goes_by_its_name(llm):
    assert llm.apply_model(num_parameters) == llm.collective_rpc(call_with_model, args=(num_parameters,))
    with pytest.raises(UnsupportedError, match="sends no code to other processes"):
        llm.apply_model(lambda model: 1)


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_a_profile_is_of_the_worker(llm, tmp_path):
    llm.start_profile(tmp_path / "traces")
    with pytest.raises(InvalidRequestError, match="being recorded"):
        llm.start_profile(tmp_path)
    llm.generate(PROMPTS[0], PARAMS[0], use_tqdm=False)
    path = llm.stop_profile()
    assert path.parent == tmp_path / "traces"
    pids = {event.get("pid") for event in json.loads(path.read_text())["traceEvents"]}
    assert llm.llm_engine.model_executor.pids[0] in pids and os.getpid() not in pids


def hidden_size(worker):
    return worker.setup.model_config.hidden_size


def test_a_worker_that_cannot_load_says_why(tmp_path, qwen3_folder):
    for path in qwen3_folder.iterdir():
        if path.name != "model.safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ModelLoadError, match="safetensors"):
        LLM(str(tmp_path), **MP)


def test_options_of_worker_processes_need_some():
    for name in ("worker_timeout", "step_timeout", "restart_workers"):
        with pytest.raises(ConfigError, match=f"{name} needs worker processes"):
            EngineConfig(**{name: 5})
        assert getattr(EngineConfig(distributed_executor_backend="mp", **{name: 5}), name) == 5
    with pytest.raises(ConfigError, match="restart_workers needs processes of this machine"):
        EngineConfig(distributed_executor_backend="ray", restart_workers=1)


def test_requests_of_a_killed_worker_end_with_its_name_and_the_engine_with_them(qwen3_folder):
    async def run():
        engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **MP))
        pids = engine._engine.model_executor.pids
        params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        first = asyncio.Event()

        async def read():
            async for _ in engine.generate("hello world", params, "x"):
                first.set()

        reading = asyncio.create_task(read())
        await first.wait()
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerLostError, match=r"worker 0 \(process \d+\) was killed by SIGKILL"):
            await asyncio.wait_for(reading, 30)
        with pytest.raises(WorkerLostError):
            await collect(engine, request_id="y")
        with pytest.raises(WorkerLostError):
            engine.check_running()
        await engine.shutdown()

    asyncio.run(run())


def test_a_worker_that_is_killed_is_started_again_and_streams_go_on(qwen3_folder):
    """In mid-step and idle; the third time is once too often."""
    params = SamplingParams(
        temperature=1.0, seed=5, max_tokens=60, ignore_eos=True, output_kind=OutputKind.DELTA, logprobs=1
    )

    async def run(kill_at, **options):
        engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **OPTIONS, **options))
        executor = engine._engine.model_executor
        found, killed = [[], []], []

        async def read(number):
            async for output in engine.generate(f"hello {number} world", params, str(number)):
                found[number] += output.outputs[0].token_ids
                if kill_at is not None and len(found[0]) >= kill_at and not killed:
                    killed.append(executor.pids[0])
                    os.kill(killed[0], signal.SIGKILL)

        async with asyncio.TaskGroup() as group:
            group.create_task(read(0))
            group.create_task(read(1))
        if kill_at is not None:
            killed.append(executor.pids[0])
            os.kill(killed[1], signal.SIGKILL)
            async with asyncio.timeout(120):
                while executor.pids[0] == killed[1]:
                    await asyncio.sleep(0.05)
            assert len(set(killed)) == 2
            found.append(tokens(await collect(engine, "hello 0 world", params, "idle")))
            os.kill(executor.pids[0], signal.SIGKILL)
            with pytest.raises(WorkerLostError, match="again restart_workers=2 times within an hour; build a new"):
                await collect(engine, "hello 0 world", params, "last")
        await engine.shutdown()
        return found

    golden = asyncio.run(run(None))
    first, second, idle = asyncio.run(run(20, distributed_executor_backend="mp", restart_workers=2))
    assert [first, second] == golden and idle == golden[0], "no token is lost, and none comes twice"


def test_an_idle_server_ends_with_its_worker():
    """/health turns red, and the exit code says so."""
    command = [
        sys.executable,
        "-m",
        "lullm.cli.main",
        "serve",
        "demo",
        "--port",
        "0",
        "--num-gpu-blocks-override",
        "64",
    ]
    with running([*command, "--distributed-executor-backend", "mp"], ReadyPopen, stderr=subprocess.STDOUT) as server:
        line = next(line for line in server.stdout if "http://" in line)
        url = "http://" + line.split("http://")[1].split()[0].strip().rstrip("/")
        (pid,) = children(server.pid)
        assert health(url) == 200
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while health(url) != 503:
            assert time.monotonic() < deadline, "it stays green"
            time.sleep(0.05)
        assert server.wait(120) == 1
        assert f"worker 0 (process {pid}) was killed by SIGKILL" in server.stdout.read()


def children(pid):
    """Of all threads."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def health(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            json.load(response)
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
