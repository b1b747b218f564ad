"""CudaDevice on the fake GPU, where threads, recordings and engines meet."""

import gc
import threading
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


@pytest.fixture
def gpu(fake):
    from fake_cuda import FakeCuda

    with FakeCuda(fake, index=1) as gpu:
        torch.cuda.set_device(1)
        yield gpu
    assert not gpu.faults, gpu.faults[0]


@pytest.fixture
def device(gpu):
    from lullm.device.cuda import CudaDevice

    made = CudaDevice(1)
    yield made
    vars(made).clear()  # the driver's context goes with the last who holds it


def in_thread(work):
    errors = []

    def run():
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_a_thread_that_never_chose_a_device(device, gpu):
    """Every thread starts with GPU 0: a kernel there cannot see the tensors, and pinned memory takes a context."""
    from lullm.ops.triton.elementwise import rms_norm

    x, found = torch.ones(1, 16, device=device.torch_device), []

    def work():
        staged = device.staging((4,), torch.float32)
        outcome = device.start(lambda: device.to_host(rms_norm(x, x[0], 1e-6))).result()
        found.append((staged.tolist(), outcome.sum().item(), gpu.current_device))

    thread, errors = in_thread(work)
    thread.join()
    assert not errors and found == [([0.0] * 4, pytest.approx(16.0, abs=1e-4), 0)]


def test_two_engines_record_one_after_the_other(device):
    started = []

    def record():
        return device.capture(lambda: (torch.ones(2, device="cuda"),), None)

    def work():
        started.append(in_thread(record))  # it must not wait for this recording, which waits for nothing
        return (torch.ones(1, device="cuda"),)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "_borrowed", lambda tensor, graph: tensor)
        for _ in range(3):
            device.capture(work, None)
        for thread, errors in started:
            thread.join()
            assert not errors


def test_no_garbage_is_collected_while_a_graph_is_recorded(device, monkeypatch):
    """A dead engine is a cycle of objects; its arenas must not be unmapped there."""
    monkeypatch.setattr(device, "_borrowed", lambda tensor, graph: tensor)
    collected, seen = [], []

    class Engine:
        def __init__(self):
            self.me = self

        def __del__(self):
            collected.append(True)

    def work():
        Engine()
        keep = [[] for _ in range(5000)]  # seven times what starts a collection
        seen.append(list(collected))
        return (torch.full((1,), len(keep), device="cuda"),)

    device.capture(work, None)
    assert seen == [[]] and gc.isenabled()
    with pytest.raises(ZeroDivisionError):
        device.capture(lambda: (1 / 0,), None)
    assert gc.isenabled()


def test_sums_of_split_products_are_float32(device):
    products = torch.backends.cuda.matmul

    def settings():
        return products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction

    before = settings()
    assert device.start(settings).result() == (False, False) and settings() == before


@pytest.mark.parametrize("facts, node", [({"pci_domain_id": 0, "pci_bus_id": 0x8A, "pci_device_id": 0}, 1), ({}, None)])
def test_pinned_memory_is_on_the_node_of_the_gpu(fake, gpu, monkeypatch, facts, node):
    from lullm.arena import pinned
    from lullm.device import cuda

    asked, placed = [], []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(**facts))
    monkeypatch.setattr(cuda, "node_of_pci_device", lambda *place: asked.append(place) or 1)
    monkeypatch.setattr(pinned, "place_near", lambda address, num_bytes, node: placed.append((address, node)))
    arena = cuda.CudaDevice(1).new_host_arena("backup", 1000)
    arena.release()
    arena.map()
    assert placed == ([(arena.base_address, node)] * 2 if node is not None else [])
    assert asked == ([(0, 0x8A, 0)] if node is not None else [])
    arena.close()


def test_graphs_that_are_dropped_give_their_memory_back(device, gpu):
    from lullm.step.graphs import DecodeGraphs, DecodeOutput

    def compute(size):
        return DecodeOutput(torch.zeros(size, 1000, device="cuda"), torch.zeros(size, dtype=torch.int64, device="cuda"))

    graphs = DecodeGraphs(device, compute)
    gc.disable()
    try:
        graphs.capture([1, 2, 4], lambda size: None)
        torch.cuda.empty_cache()
        held = gpu.allocator.reserved
        graphs.drop()
        assert held > 4 * 4000 and gpu.allocator.reserved == 0
    finally:
        gc.enable()
