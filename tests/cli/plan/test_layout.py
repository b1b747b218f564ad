"""`lullm plan --gpus`: its bytes are those of real engines, and its speeds follow from devices and links."""

import json

import pytest
from kit.worker.threads import use_threads

from lullm import LLM
from lullm.cli.main import main
from lullm.cli.plan.gpu import GPU, GPUS, known_gpu
from lullm.cli.plan.layout import (
    GPU_BYTES,
    Devices,
    Layout,
    LayoutPlan,
    Planner,
    gpus,
    layout_advice,
    layouts,
    processes,
)
from lullm.cli.plan.model import read_model
from lullm.cli.plan.roofline import PROCESS_BYTES, Machine
from lullm.errors import CacheSizeError, ConfigError
from lullm.units import GIB

DEVICES = Devices(4, Machine(GIB, 20e9, 1e12), 10e9, 1e-5)
KNOWN = ["plan", "demo", "--memory", "8GiB", "--bandwidth", "20", "--tflops", "1"]


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("layout", [Layout(2, 1, 1), Layout(4, 1, 1), Layout(1, 2, 1), Layout(2, 2, 1)], ids=str)
def test_the_bytes_are_an_engines(layout, quantization, monkeypatch):
    """Of the fullest of its workers. Blocks are `num_gpu_blocks_override`, so that only their size counts."""
    found = Planner(read_model("demo"), quantization, "auto").plan(layout, DEVICES, 256, 4)
    use_threads(monkeypatch)
    sizes = {"tensor_parallel_size": layout.tensor, "pipeline_parallel_size": layout.pipeline}
    with LLM("demo", quantization=quantization, max_model_len=256, num_gpu_blocks_override=64, **sizes) as llm:
        workers = llm.llm_engine.model_executor.workers
        weights_bytes = max(worker.loaded.arena.used_bytes for worker in workers)
        kv_bytes = max(sum(t.nbytes for cache in worker.pools.device for t in cache.tensors) for worker in workers)
    assert found.weights_bytes == pytest.approx(weights_bytes, rel=0.02)
    assert found.kv_bytes_per_token == pytest.approx(kv_bytes / (64 * 16), rel=0.02)
    room = DEVICES.each.memory_bytes - found.weights_bytes
    assert found.num_blocks == pytest.approx(room / (found.kv_bytes_per_token * 16), abs=1)
    assert found.num_sequences == found.num_blocks // (256 // 16)


def test_all_layouts():
    assert layouts(4, None, None, None) == [
        *(Layout(1, 1, 4), Layout(1, 2, 2), Layout(1, 4, 1)),
        *(Layout(2, 1, 2), Layout(2, 2, 1), Layout(4, 1, 1)),
    ]
    assert layouts(3, None, None, None) == [Layout(1, 1, 3), Layout(1, 3, 1), Layout(3, 1, 1)]
    assert layouts(8, 2, 1, None) == [Layout(2, 1, 4)]
    with pytest.raises(ConfigError, match="tensor x pipeline x data = 3 x any x any does not make 4 workers"):
        layouts(4, 3, None, None)


def test_more_workers_share_memory_and_work():
    planner = Planner(read_model("demo"), None, "auto")
    alone, two = (planner.plan(Layout(size, 1, 1), DEVICES, 256, 4) for size in (1, 2))
    assert two.weights_bytes < 0.6 * alone.weights_bytes and two.num_blocks > 1.9 * alone.num_blocks
    assert alone.decode < two.decode < 2 * alone.decode
    replicas = planner.plan(Layout(1, 1, 2), DEVICES, 256, 4)
    assert replicas.num_sequences == 2 * alone.num_sequences and replicas.decode == alone.decode
    assert alone.batch_decode < replicas.batch_decode < 2 * alone.batch_decode


def test_links_cost_time():
    planner = Planner(read_model("demo"), None, "auto")
    slow = Devices(2, DEVICES.each, 1e6, 1e-5)
    patient = Devices(2, DEVICES.each, 10e9, 1e-2)
    quick, *others = (planner.plan(Layout(2, 1, 1), devices, 256, 4) for devices in (DEVICES, slow, patient))
    for other in others:
        assert other.decode < 0.5 * quick.decode and other.prefill < 0.5 * quick.prefill
    alone = [planner.plan(Layout(1, 1, 2), devices, 256, 4) for devices in (DEVICES, slow)]
    assert alone[0] == alone[1], "replicas do not talk"


def test_devices():
    gpu = gpus(2, GPU(80, 2000, 300, 100), 0.9)
    assert gpu.each == Machine(int(72 * GIB) - GPU_BYTES, 2e12, 3e14) and gpu.link_bytes_per_s == 1e11
    two = processes(2, Machine(8 * GIB, 20e9, 1e12))
    assert two.each == Machine(4 * GIB - PROCESS_BYTES, 10e9, 5e11)
    assert known_gpu("h100") is GPUS["H100"]
    with pytest.raises(ConfigError, match="--gpu H1000 is not known; known are A10"):
        known_gpu("H1000")


def made(layout, num_sequences, decode, batch_decode):
    return LayoutPlan(
        layout=layout,
        num_blocks=1,
        weights="bfloat16",
        weights_bytes=GIB,
        prefill=1.0,
        num_sequences=num_sequences,
        decode=decode,
        batch_decode=batch_decode,
    )


def test_the_advice():
    plans = [made(Layout(1, 1, 4), 3, 9.0, 90.0), made(Layout(2, 1, 2), 9, 5.0, 50.0), made(Layout(4, 1, 1), 12, 8, 40)]
    assert layout_advice(plans, 100, 2).startswith("Take --data-parallel-size 4: of the layouts with room for 2")
    text = layout_advice(plans, 100, 8)
    assert text.startswith("Take --tensor-parallel-size 2 --data-parallel-size 2: ")
    assert text.endswith("alone is fastest with --tensor-parallel-size 4: 8 tokens a second, against 5.")
    assert "40 sequences of 100 tokens fit in no layout; --tensor-parallel-size 4" in layout_advice(plans, 100, 40)
    with pytest.raises(CacheSizeError, match="no sequence of 100 tokens fits on a device beside the weights.* 1.0 GiB"):
        layout_advice([made(Layout(1, 1, 1), 0, 1, 1)], 100, 1)


def test_the_table(capsys):
    assert main([*KNOWN, "--gpus", "2", "--link", "5", "--len", "512"]) == 0
    out = capsys.readouterr().out
    assert "2 devices, each: 6.2 GiB" in out and "TP  PP  DP  WEIGHTS" in out and "Take " in out
    assert main([*KNOWN, "--gpus", "2", "--cpu", "--quantization", "int8", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["devices"]["each"]["bytes_per_s"] == 1e10
    assert {"tensor": 2, "pipeline": 1, "data": 1} in [each["layout"] for each in data["plans"]]
    assert main(["plan", "--model", "demo", "--gpus", "1", "--gpu", "L4"]) == 0
    assert "Take one worker" in capsys.readouterr().out


def test_a_size_that_does_not_divide_the_model(capsys):
    assert main([*KNOWN, "--gpus", "3", "--cpu"]) == 0
    assert "Not --tensor-parallel-size 3: tensor_parallel_size=3 does not divide" in capsys.readouterr().out
    assert main([*KNOWN, "--gpus", "3", "--cpu", "--tensor-parallel-size", "3"]) == 2
    assert "no layout: --tensor-parallel-size=3 does not divide" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--gpus", "0"], "--gpus must be a number above 0, got 0"),
        (["--gpus", "2"], "say which GPU: --gpu NAME, or --link; or --cpu"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size is for several devices; say how many: --gpus N"),
        (["--cpu"], "--cpu is for several devices"),
        (["--gpus", "2", "--cpu", "--gpu", "L4"], "worker processes have no --gpu"),
        (["--gpus", "2", "--link", "9", "--quantization", "int8"], "--quantization needs --cpu"),
    ],
)
def test_what_makes_no_plan_is_refused(flags, words, capsys):
    assert main([*KNOWN, *flags]) == 2
    assert words in capsys.readouterr().err
