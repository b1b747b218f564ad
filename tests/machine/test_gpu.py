"""The GPUs of a machine by NVML and by the driver's files, and whether `device="auto"` takes one."""

import ctypes

import pytest

from lullm.config import user_option
from lullm.config.engine import EngineConfig
from lullm.errors import UnsupportedError
from lullm.machine import gpu
from lullm.machine.gpu import Gpu, listed_by_library, listed_in_files, select, why_auto_is_cpu

H100, OTHER = Gpu("NVIDIA H100", "GPU-aa11", (9, 0)), Gpu("NVIDIA H200", "GPU-aa22", (9, 0))


class Nvml:
    """The seven calls, over made-up GPUs; None in their place: one that may not be opened."""

    def __init__(self, gpus, status=0):
        self.gpus, self.status, self.is_open = gpus, status, False

    def nvmlInit_v2(self):
        self.is_open = self.status == 0
        return self.status

    def nvmlShutdown(self):
        assert self.is_open
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 1
        return 0 if self.gpus[index.value] else 4

    def nvmlDeviceGetName(self, handle, buffer, length):
        assert length.value == ctypes.sizeof(buffer)
        buffer.value = self.gpus[handle.value - 1].name.encode()
        return 0

    def nvmlDeviceGetUUID(self, handle, buffer, length):
        buffer.value = self.gpus[handle.value - 1].uuid.encode()
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
        major._obj.value, minor._obj.value = self.gpus[handle.value - 1].capability
        return 0


def test_nvml_lists_the_gpus_that_may_be_opened_and_is_closed_again():
    library = Nvml([H100, None, OTHER])
    assert listed_by_library(library) == (H100, OTHER) and not library.is_open
    assert listed_by_library(Nvml([])) == () == listed_by_library(Nvml([H100], status=9)), "9: no driver is loaded"


def test_the_files_of_the_driver(tmp_path):
    assert listed_in_files(tmp_path) == ()
    for bus, model in (("0000:41:00.0", "NVIDIA H200"), ("0000:01:00.0", "NVIDIA H100 80GB HBM3")):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   5\nGPU UUID: \t GPU-{bus[5:7]}\n")
    assert listed_in_files(tmp_path) == (
        Gpu("NVIDIA H100 80GB HBM3", "GPU-01", None), Gpu("NVIDIA H200", "GPU-41", None),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        (None, (H100, OTHER)), ("", ()), ("-1", ()), ("NoDevFiles", ()), ("1", (OTHER,)), ("1, 0", (OTHER, H100)),
        ("0,7,1", (H100,)), ("GPU-aa2", (OTHER,)), ("GPU-aa", ()), ("GPU-bb,0", ()), ("MIG-1234", (H100,)),
    ],
)  # fmt: skip
def test_what_the_variable_leaves(given, chosen):
    assert select((H100, OTHER), given) == chosen


def test_why_auto_is_the_cpu(monkeypatch):
    def listed(*gpus):
        monkeypatch.setattr(gpu, "listed_gpus", lambda root: gpus)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu, "_missing_package", lambda: None)
    listed()
    assert why_auto_is_cpu() == "there is no NVIDIA GPU"
    listed(Gpu("Tesla T4", "GPU-0", (7, 5)))
    assert why_auto_is_cpu() == "the GPU's compute capability 7.5 is below 8.0"
    listed(Gpu("unknown", "GPU-0", None))
    assert why_auto_is_cpu() is None
    listed(Gpu("Tesla T4", "GPU-0", (7, 5)), H100)
    assert why_auto_is_cpu() is None, "CUDA's first is the fastest"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert why_auto_is_cpu() == "CUDA_VISIBLE_DEVICES hides the GPU"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(gpu, "_missing_package", lambda: "torch 2.13.0+cpu is built for CPUs only")
    assert "built for CPUs only" in why_auto_is_cpu()


def test_the_packages_of_this_machine_are_asked_without_torch(monkeypatch):
    gpu._missing_package.cache_clear()
    monkeypatch.setattr(gpu.metadata, "version", lambda name: "2.13.0+cpu")
    assert gpu._missing_package() == "torch 2.13.0+cpu is built for CPUs only"
    gpu._missing_package.cache_clear()
    monkeypatch.setattr(gpu.metadata, "version", lambda name: "2.13.0")
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert gpu._missing_package() == "the package triton is not installed"
    gpu._missing_package.cache_clear()


def test_auto_is_the_gpu_and_what_only_a_cpu_can_is_refused_with_the_way_there(monkeypatch):
    monkeypatch.setattr(user_option, "why_auto_is_cpu", lambda: None)
    config = EngineConfig()
    assert (config.device, config.place) == ("auto", "cuda") and EngineConfig(device="cpu").place == "cpu"
    EngineConfig(attention_backend="triton")
    EngineConfig(device="cpu", quantization="int8", kv_cache_dtype="int8")
    for wish in ({"quantization": "int8"}, {"kv_cache_dtype": "int8"}):
        with pytest.raises(UnsupportedError, match=r"device='auto' is the GPU here; use device='cpu' \(--device cpu\)"):
            EngineConfig(**wish)
        with pytest.raises(UnsupportedError, match=r"or use device='cpu' \(--device cpu\)"):
            EngineConfig(**wish, device="cuda")
