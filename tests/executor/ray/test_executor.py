"""Engines over a Ray of this machine: tokens of one process, sleep, new weights, and a node that dies. Slow: Ray
takes 5 to 10 s to start."""

import os
import time

import pytest
import torch
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, ModelLoadError, UnsupportedError, WorkerLostError

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Ray's own files and sockets
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

OPTIONS = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 24, "enable_sleep_mode": True}
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, n=2),
    SamplingParams(temperature=1.0, seed=3, max_tokens=12, ignore_eos=True),
]
PROMPTS = random_prompts(6, 40)
NORM = [("model.norm.weight", torch.linspace(0.5, 1.5, 64))]


@pytest.fixture(scope="module", autouse=True)
def _no_token():
    """Ray writes a token for its own connections into the home folder, else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield


@pytest.fixture(scope="module")
def local_ray(_no_token):
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def token_ids(llm):
    return [
        [c.token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False) for c in o.outputs] for params in PARAMS
    ]


def answers(llm):
    """Tokens, those after a sleep of each level, and those of new weights."""
    found = [token_ids(llm)]
    for level in (1, 2):
        llm.sleep(level)
        llm.wake_up()
        found.append(token_ids(llm))
    llm.update_weights(NORM)
    found.append(token_ids(llm))
    llm.collective_rpc("reload_weights")
    return [*found, token_ids(llm)]


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        return answers(llm)


def processes_of(llm):
    """Of the workers, by rank."""
    actors = llm.llm_engine.model_executor._workers._transport._state.processes
    return [actors._pids[rank] for rank in sorted(actors._pids)]


def until_gone(pids, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < deadline, "a worker is left behind"
        time.sleep(0.05)


@pytest.mark.parametrize("sizes", [{}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str)
def test_the_tokens_of_one_process(local_ray, qwen3_folder, expected, sizes):
    with LLM(str(qwen3_folder), distributed_executor_backend="ray", **sizes, **OPTIONS) as llm:
        assert answers(llm) == expected
        assert llm.collective_rpc("weights_version") == [3] * len(processes_of(llm))
        pids = processes_of(llm)
    until_gone(pids)
    with LLM(str(qwen3_folder), distributed_executor_backend="ray", **sizes, **OPTIONS) as llm:
        assert token_ids(llm) == expected[0], "all was given back"


def test_what_cannot_start(local_ray, qwen3_folder, tmp_path):
    with pytest.raises(ConfigError, match="need 2 CPUs each, and Ray's nodes have free: .*: 2 of 2"):
        LLM(str(qwen3_folder), distributed_executor_backend="ray", tensor_parallel_size=2, threads=4, max_model_len=64)
    with pytest.raises(ModelLoadError):
        LLM(str(tmp_path), distributed_executor_backend="ray")
    llm = LLM(str(qwen3_folder), distributed_executor_backend="ray", **OPTIONS)
    with pytest.raises(UnsupportedError, match="in another process"):
        llm.llm_engine.model_executor.driver_worker  # noqa: B018
    llm.shutdown()


def test_a_worker_that_is_killed(local_ray, qwen3_folder):
    llm = LLM(str(qwen3_folder), distributed_executor_backend="ray", **OPTIONS)
    engine = llm.llm_engine
    engine.add_request("x", PROMPTS[0], PARAMS[0])
    engine.step()
    [pid] = processes_of(llm)
    os.kill(pid, 9)
    began = time.monotonic()
    with pytest.raises(WorkerLostError, match=rf"worker 0 \(process {pid} on .*\) has died"):
        while True:
            engine.step()
    assert time.monotonic() - began < 5
    llm.shutdown()


@pytest.mark.parametrize("size", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_a_node_that_dies(qwen3_folder, expected, size):
    """Two nodes with a core each, so that each has a worker. The second one's processes are killed."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        llm = LLM(str(qwen3_folder), distributed_executor_backend="ray", **{size: 2}, **OPTIONS)
        assert token_ids(llm) == expected[0], "over the network"
        engine, pids = llm.llm_engine, processes_of(llm)
        engine.add_request("x", PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True))
        for _ in range(3):
            engine.step()
        cluster.remove_node(second, allow_graceful=False)
        began = time.monotonic()
        with pytest.raises(WorkerLostError, match="worker 1"):
            while True:
                engine.step()
        assert time.monotonic() - began < 20
        with pytest.raises(WorkerLostError):
            engine.check_health()
        llm.shutdown()
        until_gone(pids)
    finally:
        ray.shutdown()
        cluster.shutdown()
