"""CudaDevice without a GPU: what it asks torch for, in which order, on which stream; and which arenas it takes."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from lullm.device import choice
from lullm.device import cuda as cuda_device
from lullm.device.choice import missing_for_cuda
from lullm.device.cuda import CudaDevice
from lullm.errors import UnsupportedError


class Recorder:
    """Stands for the streams and events of torch.cuda, and writes down who waits for whom."""

    def __init__(self, monkeypatch):
        self.log, self.current, self.num = [], "default", 0
        recorder = self

        class Stream:
            def __init__(self, device):
                recorder.num += 1
                self.name = f"stream {recorder.num}"

            def wait_stream(self, other):
                recorder.log.append((self.name, "waits for", getattr(other, "name", other)))

        class Event:
            def __init__(self, enable_timing=False):
                pass

            def record(self):
                recorder.log.append((recorder.current, "event"))

            def synchronize(self):
                recorder.log.append(("host", "waits"))

        @contextlib.contextmanager
        def stream(chosen):
            old, recorder.current = recorder.current, chosen.name
            yield
            recorder.current = old

        @contextlib.contextmanager
        def graph(cuda_graph, pool, chosen, capture_error_mode):
            recorder.log.append((chosen.name, "recorded", pool, capture_error_mode))
            with stream(chosen):
                yield

        class CUDAGraph:
            def replay(self):
                recorder.log.append((recorder.current, "replay"))

        fakes = {
            "Stream": Stream, "Event": Event, "stream": stream, "graph": graph, "CUDAGraph": CUDAGraph,
            "graph_pool_handle": lambda: "pool", "device": lambda device: contextlib.nullcontext(),
            "set_device": lambda device: None, "default_stream": lambda device: "default",
            "get_device_properties": lambda device: SimpleNamespace(),
        }  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    def note(self, what):
        self.log.append((self.current, what))


@pytest.fixture
def recorder(monkeypatch):
    return Recorder(monkeypatch)


@pytest.fixture
def device(recorder, fake, monkeypatch):
    monkeypatch.setattr(cuda_device, "gpu_backend", lambda index: fake.build("cuda"))
    made = CudaDevice(0)
    yield made
    vars(made).clear()  # the driver's context goes with the last who holds it


def test_a_step_with_blocks_that_go_out_beside_it(device, recorder):
    def work():
        recorder.note("first")
        device.on_side_stream(lambda: recorder.note("swap out"))
        recorder.note("compute")
        device.join_side_stream()
        return 7

    running = device.start(work)
    step, side = "stream 1", "stream 2"
    assert recorder.log == [
        (step, "waits for", "default"),
        (step, "first"),
        (side, "waits for", step),
        (side, "swap out"),
        (step, "compute"),
        (step, "waits for", side),
        (step, "event"),  # so that the step is done when both are, and the next one comes behind both
    ]
    recorder.log.clear()
    assert running.result() == 7 and recorder.log == [("host", "waits")]


def test_graphs_are_recorded_on_the_stream_that_replays_them(device, recorder):
    from lullm.step.graphs import DecodeOutput

    made = DecodeOutput(torch.arange(8.0).view(2, 4), torch.tensor([3, 3]))
    captured = device.capture(lambda: recorder.note("work") or made, None)
    assert recorder.log == [("stream 1", "recorded", "pool", "thread_local"), ("stream 1", "work")]
    captured.replay()
    assert recorder.log[-1][1] == "replay"
    kept = captured.output
    assert kept.logits.data_ptr() == made.logits.data_ptr() and torch.equal(kept.tokens, made.tokens)


def test_memory_by_the_driver(device, fake):
    arena, swap = device.new_arena("weights", 1000), device.new_host_arena("kv_swap", 1000)
    assert device.resident_bytes(arena) == arena.mapped_bytes > 0
    assert device.resident_bytes(swap) == swap.capacity_bytes, "its pages are pinned"
    assert fake.counts()["pins"] == 1
    swap.close()


def test_which_arenas(fake, monkeypatch):
    """A torch for ROCm calls its devices 'cuda', too."""
    for kind in ("cuda", "rocm"):
        monkeypatch.setattr(cuda_device, f"{kind}_backend", lambda index, kind=kind: fake.build(kind))
    assert cuda_device.gpu_backend(0).name == "CUDA"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert cuda_device.gpu_backend(0).name == "ROCm"
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(choice, "_missing_for_triton", lambda: None)
    assert missing_for_cuda() is None
    monkeypatch.setattr(torch.version, "hip", None)
    assert "without CUDA" in missing_for_cuda()


def test_a_driver_that_is_too_old_is_named(monkeypatch):
    """Torch knows it, and `is_available` does not say so."""

    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(UnsupportedError, match=r"too old \(found version 12020\). Please update; .*use device='cpu'"):
        choice.open_device("cuda")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert "does not say why" in missing_for_cuda()


def test_triton_that_cannot_start_is_named_before_anything_is_loaded(monkeypatch):
    """Its launcher is compiled on the first use of a GPU, and a machine for inference may have no compiler."""
    triton = pytest.importorskip("triton")

    class Driver:
        @property
        def active(self):
            raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable\nor ...")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton.runtime, "driver", Driver())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert missing_for_cuda() is None
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(UnsupportedError, match=r"Failed to find C compiler. .*apt install gcc python3-dev"):
        choice.open_device("cuda")
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    assert "pip install triton" in missing_for_cuda()


def test_an_amd_gpu_gets_no_tiles_of_hopper(monkeypatch):
    tile = pytest.importorskip("lullm.ops.triton.tile")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))  # gfx90a
    assert tile._key(torch.bfloat16, 128) in tile._DECODE
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert tile._key(torch.bfloat16, 128) not in tile._DECODE


def test_ascend_is_refused_by_name():
    from lullm.config.engine import EngineConfig

    for name in ("npu", "npu:0"):
        with pytest.raises(UnsupportedError, match="arenas for Ascend memory, but neither ops.*use device='cpu'"):
            EngineConfig(device=name)
