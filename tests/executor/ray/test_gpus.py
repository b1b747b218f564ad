"""Workers of Ray with a made-up GPU each: Ray counts GPUs as it is told, and shows each worker its own. Slow."""

import os
import sys
import time

import pytest
import torch
from kit.folder.checkpoint import write_checkpoint
from kit.worker.fake_gpus import doom, gpu_facts, open_on_fake_node, visible_gpus

from lullm import LLM, SamplingParams
from lullm.errors import ConfigError, WorkerLostError

ray = pytest.importorskip("ray")
pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Ray's own files and sockets
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
PARAMS = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPTS = [[5, 6, 7], [9, 10, 11, 12]]
OPTIONS = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2}
ON_GPUS = OPTIONS | {
    "device": "cuda",
    "distributed_executor_backend": "ray",
    "num_gpu_blocks_override": 12,
    "swap_space": 0,
    "enable_sleep_mode": True,
}


def token_ids(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "qwen3", **sizes))


@pytest.fixture(scope="module")
def expected(folder):
    with LLM(folder, device="cpu", **OPTIONS) as llm:
        return token_ids(llm)


@pytest.fixture(params=[1, 2], ids=["one-node", "two-nodes"])
def cluster(request, monkeypatch):
    """Two GPUs, on so many nodes."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's workers import what opens a made-up GPU
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("lullm.executor.ray.executor.open_on_node", open_on_fake_node)
    each = {"num_cpus": 1, "num_gpus": 2 // request.param}
    nodes = Cluster(initialize_head=True, head_node_args=each | {"include_dashboard": False})
    try:
        for _ in range(request.param - 1):
            nodes.add_node(**each)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        yield request.param
    finally:
        ray.shutdown()
        nodes.shutdown()


def test_the_tokens_of_one_process(cluster, folder, expected):
    for sizes in ({"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}):
        with LLM(folder, **sizes, **ON_GPUS) as llm:
            for level in (1, 2):
                assert token_ids(llm) == expected
                assert llm.sleep(level).tags == ("weights", "kv_cache")
                llm.wake_up()
            assert sorted(llm.collective_rpc(visible_gpus)) == (["0", "1"] if cluster == 1 else ["0", "0"])
            for num_replays, faults, device, _ in llm.collective_rpc(gpu_facts):
                assert num_replays >= 10 and faults == [] and device == "cuda:0"
    with pytest.raises(ConfigError, match="4 workers need 1 GPU each, and Ray's nodes have free"):
        LLM(folder, tensor_parallel_size=2, pipeline_parallel_size=2, **ON_GPUS)
    llm = LLM(folder, tensor_parallel_size=2, **ON_GPUS)
    llm.collective_rpc(doom, args=(1, "dies"))
    began = time.monotonic()
    with pytest.raises(WorkerLostError, match="worker 1 .* has died"):
        token_ids(llm)
    assert time.monotonic() - began < 20
    llm.shutdown()
