"""Devices: what is missing for a GPU, and how memory is divided on one, by numbers that a fake one gives."""

import pytest
import torch
from kit.device.fake_device import FAKE_OPS, FakeDevice
from kit.engine.parts import use_device, use_ops

from lullm import LLM
from lullm.device import choice as device_choice
from lullm.device.choice import open_device
from lullm.device.cpu import CpuDevice
from lullm.device.device import MemoryInfo
from lullm.errors import CacheSizeError, UnsupportedError
from lullm.step.graphs import decode_sizes
from lullm.units import GIB, MIB


def test_what_a_gpu_needs(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UnsupportedError, match="built without CUDA.*use device='cpu'"):
        open_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError, match="torch sees no GPU"):
        open_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device_choice, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="triton is not installed"):
        open_device("cuda")
    assert isinstance(open_device("cpu"), CpuDevice)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_an_engine_says_what_is_missing(qwen3_folder):
    with pytest.raises(UnsupportedError, match="device='cuda' cannot be used: "):
        LLM(str(qwen3_folder), device="cuda")


def test_a_cpu_works_when_it_is_asked():
    log = []
    running = CpuDevice().start(lambda: log.append("work") or 7)
    assert log == []
    assert running.result() == 7 and log == ["work"]


class TestMemory:
    """10 GiB, of which 1.5 are taken; the largest step takes 512 MiB more, the largest decode 64."""

    @pytest.fixture
    def device(self, monkeypatch):
        device = FakeDevice(MemoryInfo(10 * GIB - 3 * GIB // 2, 10 * GIB))
        device.peaks = [512 * MIB, 64 * MIB]
        use_device(monkeypatch, device)
        use_ops(monkeypatch, FAKE_OPS)
        return device

    def build(self, folder, monkeypatch, **options):
        """(bytes for KV, how many spans and tokens the profile runs had)."""
        from lullm.config.engine import EngineConfig
        from lullm.config.model import ModelConfig
        from lullm.step.runner import ModelRunner
        from lullm.worker.sizing import kv_memory_bytes
        from lullm.worker.worker import Worker

        model_config = ModelConfig.from_folder(folder)
        config = EngineConfig(
            model=str(folder),
            dtype="float32",
            device="cuda",
            max_model_len=64,
            max_num_seqs=6,
            max_num_batched_tokens=50,
            **options,
        ).resolve(model_config)
        worker = Worker(config, model_config, folder)
        shapes = []
        launch = ModelRunner.launch
        monkeypatch.setattr(
            ModelRunner, "launch", lambda self, p: shapes.append((len(p.spans), p.num_tokens)) or launch(self, p)
        )
        try:
            return kv_memory_bytes(worker.setup, worker.loaded.model), shapes
        finally:
            worker.shutdown()

    def test_what_is_left(self, qwen3_folder, device, monkeypatch):
        found, shapes = self.build(qwen3_folder, monkeypatch, gpu_memory_utilization=0.8)
        graphs = 64 * MIB + 4 * MIB * len(decode_sizes(device, 6))
        # The peak of the largest step is in what is taken by then: torch's allocator keeps it.
        assert found == 8 * GIB - 3 * GIB // 2 - graphs
        assert shapes == [(6, 48), (6, 6)]

    def test_another_process_has_it_all(self, qwen3_folder, device, monkeypatch):
        """The second engine on a GPU: who has the memory, and what helps."""
        device.memory = MemoryInfo(GIB, 10 * GIB)
        with pytest.raises(
            CacheSizeError,
            match=r"=0.9 of 10.0 GiB is 9.0 GiB, 9.0 GiB are taken .*other engines and processes.* raise it",
        ):
            self.build(qwen3_folder, monkeypatch)

    def test_without_graphs(self, qwen3_folder, device, monkeypatch):
        found, shapes = self.build(qwen3_folder, monkeypatch, gpu_memory_utilization=0.8, enforce_eager=True)
        assert found == 8 * GIB - 3 * GIB // 2 and shapes == [(6, 48)]

    def test_chosen_blocks_need_no_run(self, qwen3_folder, device, monkeypatch):
        assert self.build(qwen3_folder, monkeypatch, num_gpu_blocks_override=8)[1] == []

    def test_blocks_from_what_is_left(self, qwen3_folder, device):
        device.memory = MemoryInfo(9 * GIB, 10 * GIB)
        options = {"dtype": "float32", "device": "cuda", "max_model_len": 64, "max_num_seqs": 6, "block_size": 16}
        share = 1 + 64 * MIB + 4 * MIB * len(decode_sizes(device, 6)) + 100 * 16 * 3 * 2 * 2 * 16 * 4
        with LLM(str(qwen3_folder), gpu_memory_utilization=0.1 + share / (10 * GIB), swap_space=0, **options) as llm:
            assert llm.llm_engine.stats().num_blocks == 100
            tags = [tag for name, tag in device.calls if name == "arena"]
            assert tags == ["weights", "kv_cache"]

    def test_nothing_is_left(self, qwen3_folder, device):
        options = {"dtype": "float32", "device": "cuda", "max_model_len": 64, "max_num_seqs": 6}
        with pytest.raises(CacheSizeError, match="gpu_memory_utilization"):
            LLM(str(qwen3_folder), gpu_memory_utilization=0.1, **options)
