"""Several GPUs that are made up, each in a worker process: the tokens of one worker, with graphs and sleep."""

import os
import time

import pytest
import torch
from kit.folder.checkpoint import write_checkpoint, write_tokenizer
from kit.model.golden import SIZES, random_model
from kit.worker.fake_gpus import OPENER, doom, gpu_facts

from lullm import LLM, SamplingParams
from lullm.device import choice
from lullm.device.choice import gpu_environments, visible_names
from lullm.engine.process import spawn
from lullm.errors import ConfigError, UnsupportedError, WorkerLostError

pytest.importorskip("triton")
VISIBLE = "CUDA_VISIBLE_DEVICES"
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPTS = [[5, 6, 7], [9, 10, 11, 12]]
MORE_SIZES = {"Olmo2": {}, "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}}
OPTIONS = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2}


@pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here")
@pytest.mark.parametrize(
    ("family", "tensor", "pipeline"),
    [
        ("qwen3", 2, 1),
        pytest.param("qwen3", 1, 2, marks=pytest.mark.slow),  # of launched processes: tests/gpu/test_launched.py
        pytest.param("qwen3", 2, 2, marks=pytest.mark.slow),
        pytest.param("Olmo2", 2, 1, marks=pytest.mark.slow),
        pytest.param("Qwen3Moe", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_workers_give_the_tokens_of_one(tmp_path, monkeypatch, family, tensor, pipeline):
    """Olmo2: norms over all workers' heads, whose sums are in the graphs as well. Qwen3Moe: whole experts are dealt."""
    sizes = {"num_hidden_layers": pipeline, "num_attention_heads": 2, "num_key_value_heads": 1}
    folder = str(tmp_path)
    if family == "qwen3":
        write_checkpoint(tmp_path, family, **sizes)
    else:
        random_model(family, SIZES | sizes | {"num_key_value_heads": 2} | MORE_SIZES[family]).save_pretrained(tmp_path)
        write_tokenizer(tmp_path)
    with LLM(folder, device="cpu", **OPTIONS) as llm:
        expected = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    monkeypatch.setattr("lullm.executor.mp.executor.OPENER", OPENER)
    monkeypatch.setattr("lullm.executor.mp.executor.gpu_environments", lambda count: [{"A_GPU": "x"}] * count)
    options = OPTIONS | {"num_gpu_blocks_override": 12, "swap_space": 0, "enable_sleep_mode": True}
    options |= {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    options |= {"enable_expert_parallel": family == "Qwen3Moe"}
    with LLM(folder, device="cuda", **options) as llm:
        for level in (1, 2, 1):
            found = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
            assert found == expected
            assert llm.sleep(level).tags == ("weights", "kv_cache")
            llm.wake_up()
        for num_replays, faults, device, own in llm.collective_rpc(gpu_facts):
            assert (num_replays, faults, device, own) == (9 * pipeline, [], "cuda:0", "x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here")
@pytest.mark.parametrize(
    ("fate", "options", "words"),
    [
        pytest.param("dies", {"tensor_parallel_size": 2}, "worker 1 .* SIGKILL", marks=pytest.mark.slow),
        ("hangs", {"pipeline_parallel_size": 2, "step_timeout": 10.0}, "has not finished a step within step_timeout"),
    ],
)
def test_a_worker_that_is_lost_within_a_step(tmp_path, monkeypatch, fate, options, words):
    """The other one waits for it on its GPU for ever, and is killed."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    folder = str(write_checkpoint(tmp_path, "qwen3", **sizes))
    monkeypatch.setattr("lullm.executor.mp.executor.OPENER", OPENER)
    monkeypatch.setattr("lullm.executor.mp.executor.gpu_environments", lambda count: [{}] * count)
    llm = LLM(folder, device="cuda", **OPTIONS, num_gpu_blocks_override=12, swap_space=0, **options)
    pids = llm.llm_engine.model_executor.pids
    llm.collective_rpc(doom, args=(1, fate))
    began = time.monotonic()
    with pytest.raises(WorkerLostError, match=words):
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert time.monotonic() - began < 60
    llm.shutdown()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here")
def test_an_engine_on_each_gpu(tmp_path, monkeypatch):
    """Two engines behind one client: each sees its own GPU, and all calls reach both."""
    folder = str(write_checkpoint(tmp_path, "qwen3", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1))
    with LLM(folder, device="cpu", **OPTIONS) as llm:
        expected = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    enter = "sys.path[:] = sys.argv[2:]; from kit.device import rehearsal; rehearsal.enter();"
    monkeypatch.setattr("lullm.engine.process.spawn._CODE", spawn._CODE.replace("sys.path[:] = sys.argv[2:];", enter))

    def environments(count, num_each, option):
        assert (count, num_each, option) == (2, 1, "data_parallel_size")
        return [{"A_GPU": "x"}, {"A_GPU": "y"}]

    monkeypatch.setattr(choice, "gpu_environments", environments)
    options = OPTIONS | {"num_gpu_blocks_override": 12, "swap_space": 0, "enable_sleep_mode": True}
    with LLM(folder, device="cuda", data_parallel_size=2, **options) as llm:
        for level in (1, 2):
            found = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
            assert found == expected
            assert llm.sleep(level).tags == ("weights", "kv_cache")
            llm.wake_up()
        facts = llm.collective_rpc(gpu_facts)
        assert [own for *_, own in facts] == ["x", "y"]
        for num_replays, faults, device, _ in facts:
            assert num_replays == 6 and faults == [] and device == "cuda:0", "one prompt each time"


def test_each_worker_sees_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setattr(choice, "missing_for_cuda", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(os.environ.get(VISIBLE, "0,1,2").split(",")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu_environments(1) == [{}]
    assert gpu_environments(2) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    with pytest.raises(ConfigError, match=r"=4 needs 4 GPUs, .*\(3 on this machine\): take at most 3"):
        gpu_environments(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6, GPU-abc,2")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in gpu_environments(3)] == ["6", "GPU-abc", "2"]
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=6,GPU-abc,2"):
        gpu_environments(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,GPU-abc,2,3,4")
    pairs = gpu_environments(2, 2, "data_parallel_size")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in pairs] == ["6,GPU-abc", "2,3"]
    with pytest.raises(ConfigError, match="data_parallel_size=3 needs 6 GPUs, .* take at most 2"):
        gpu_environments(3, 2, "data_parallel_size")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert gpu_environments(2)[1] == {"HIP_VISIBLE_DEVICES": "1"}
    assert visible_names("0,1,-1", 2) == ["0", "1"], "what torch does not count is not there"


def test_without_a_gpu_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(choice, "missing_for_cuda", lambda: "torch sees no GPU")
    with pytest.raises(UnsupportedError, match="torch sees no GPU; use device='cpu'"):
        gpu_environments(2)
