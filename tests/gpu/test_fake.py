"""The fake GPU lies less: what it refuses, what it notices, and what it leaves unfinished until somebody waits."""

import gc
import threading

import pytest
import torch

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")


@pytest.fixture
def gpu(fake_driver):
    """Without a look at its faults."""
    from fake_cuda import FakeCuda

    with FakeCuda(fake_driver) as gpu:
        yield gpu


def pinned(*values):
    return torch.tensor(values).pin_memory()


def on_device(*values):
    return torch.tensor(values, device="cuda")


def test_a_copy_to_the_host_ends_when_the_host_has_waited(gpu):
    target, done = torch.zeros(2, dtype=torch.int64, pin_memory=True), torch.cuda.Event()
    target.copy_(on_device(7, 8), non_blocking=True)
    done.record()
    assert target.tolist() != [7, 8] and not done.query()
    done.synchronize()
    assert target.tolist() == [7, 8] and done.query()


def test_who_asks_an_event_often_enough_learns_that_it_is_done(gpu):
    done, timed = torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
    on_device(1).add_(1)
    done.record()
    timed.record()
    with pytest.raises(RuntimeError, match="not ready"):
        timed.elapsed_time(timed)
    assert [done.query() for _ in range(4)] == [False, False, True, True]


@pytest.mark.parametrize("waits", [False, True])
def test_a_source_that_is_written_too_early(gpu, waits):
    source, target = pinned(1, 2), torch.zeros(2, dtype=torch.int64, device="cuda")
    target.copy_(source, non_blocking=True)
    if waits:
        torch.cuda.synchronize()
    source[0] = 9
    torch.cuda.synchronize()
    assert len(gpu.faults) == (0 if waits else 1)


def captured(work, pool=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool):
        out = work()
    return graph, out


def test_a_replay_runs_no_python_and_sees_the_recorded_arguments(gpu):
    x, factor, calls = on_device(1, 2), 2, []

    def work():
        calls.append(None)
        return x * factor

    graph, out = captured(work)
    factor = 5
    x.add_(1)
    graph.replay()
    assert out.tolist() == [4, 6] and len(calls) == 1


def test_a_replay_over_freed_memory(gpu):
    alive = [on_device(1, 2)]
    graph, _ = captured(lambda: alive[0] + 1)
    graph.replay()
    alive.clear()
    gc.collect()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        graph.replay()


def test_the_outputs_of_two_graphs_lie_over_each_other(gpu):
    x, pool = on_device(1, 2), torch.cuda.graph_pool_handle()
    first, one = captured(lambda: x + 1, pool)
    second, two = captured(lambda: x + 2, pool)
    apart, three = captured(lambda: x + 3)
    apart.replay()
    first.replay()
    assert one.tolist() == [2, 3]
    second.replay()
    assert two.tolist() == [3, 4] and three.tolist() == [4, 5] and one.tolist() != [2, 3]


def in_thread(work):
    errors = []

    def run():
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


def test_one_capture_at_a_time(gpu):
    errors = []

    def work():
        errors.extend(in_thread(lambda: captured(lambda: on_device())))
        return torch.zeros(1, device="cuda")

    captured(work)
    assert "another capture" in str(errors[0]) and not in_thread(lambda: captured(lambda: torch.ones(1, device="cuda")))


def test_every_thread_starts_with_device_0(fake_driver):
    from fake_cuda import FakeCuda

    from lullm.ops.triton.elementwise import rms_norm

    with FakeCuda(fake_driver, index=1) as gpu:
        torch.cuda.set_device(1)
        x = torch.ones(1, 16, device="cuda:1")
        rms_norm(x, x[0], 1e-6)
        errors = in_thread(lambda: rms_norm(x, x[0], 1e-6))
        assert "device 0" in str(errors[0])
        in_thread(lambda: torch.zeros(1, pin_memory=True))
        assert len(gpu.faults) == 1 and "memory is pinned while device 0" in gpu.faults[0]


def test_what_the_allocator_holds(gpu):
    MIB = 1 << 20
    free = torch.cuda.mem_get_info()[0]
    kept = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == MIB and torch.cuda.max_memory_allocated() == 3 * MIB
    assert free - torch.cuda.mem_get_info()[0] == 3 * MIB, "what is freed stays reserved"
    torch.cuda.empty_cache()
    assert free - torch.cuda.mem_get_info()[0] == MIB
    graph, _ = captured(lambda: kept + 1)
    torch.cuda.empty_cache()
    assert free - torch.cuda.mem_get_info()[0] == 2 * MIB, "a graph's pool stays with the graph"
    del graph
    gc.collect()
    assert free - torch.cuda.mem_get_info()[0] == MIB


def test_memory_that_is_unmapped_while_work_may_use_it(gpu):
    from lullm.device.cuda import CudaDevice

    arena = CudaDevice(0).new_arena("weights", 1024)
    arena.empty((4,), torch.float32).fill_(1.0)
    arena.release()
    assert len(gpu.faults) == 1 and "unmapped while work" in gpu.faults[0]
    arena.map()
    arena.empty((4,), torch.float32).fill_(1.0)
    torch.cuda.synchronize()
    arena.close()
    assert len(gpu.faults) == 1
