"""CUDA, ROCm and Ascend arenas over a recording fake driver: calls, sizes, ways back, leaks. No device is needed."""

import gc
import sys
import threading

import pytest
import torch
from kit.ready_process import ready_run

from lullm.arena.arena import Arena, ArenaState
from lullm.arena.driver.npu import PhysicalMemoryProperties
from lullm.arena.driver.unified import AccessDescription, AllocationProperties
from lullm.errors import CacheSizeError, LullmError, UnsupportedError
from lullm.units import MIB


def chunk_calls(names, kind, address, size, handle):
    """What one chunk takes, in order."""
    calls = [(names.create, size, 1), (names.map, address, size, 0, handle)]
    if names.set_access:
        calls.append((names.set_access, address, size, 1, 3))  # device 1; reading and writing
    return calls


def test_order_sizes_and_addresses(fake, kind, names):
    fake.set_granularity(4 * MIB)
    backend = fake.build(kind, device_index=1, chunk_bytes=6 * MIB)
    assert backend.granularity == 4 * MIB and backend.chunk_bytes == 8 * MIB
    fake.reset()
    fake.set_granularity(4 * MIB)
    arena = Arena(backend, "weights", 17 * MIB)
    assert arena.capacity_bytes == arena.mapped_bytes == 20 * MIB and arena.num_chunks == 3
    start = arena.base_address
    calls = fake.calls(names.make_current)
    assert calls[0] == (names.reserve, 20 * MIB, 0, 0, 1 if kind == "npu" else 0)
    chunks = [(start, 8 * MIB), (start + 8 * MIB, 8 * MIB), (start + 16 * MIB, 4 * MIB)]
    assert calls[1:] == [
        call for i, (address, size) in enumerate(chunks) for call in chunk_calls(names, kind, address, size, i + 1)
    ]

    fake.reset()
    arena.release()
    assert arena.state is ArenaState.RELEASED and arena.mapped_bytes == 0
    sized = kind != "npu"
    assert fake.calls(names.make_current) == [
        call
        for i, (address, size) in enumerate(chunks)
        for call in ((names.unmap, address, *[size] * sized), (names.release, i + 1))
    ]
    fake.reset()
    arena.release()
    assert fake.calls() == []  # twice is once

    arena.map()
    assert fake.calls(names.make_current, names.create)[0][:3] == (names.map, start, 8 * MIB)  # where it was
    assert arena.state is ArenaState.MAPPED and arena.base_address == start
    fake.reset()
    arena.map()
    assert fake.calls() == []

    arena.close()
    assert arena.state is ArenaState.CLOSED and arena.mapped_bytes == 0
    assert fake.calls(names.make_current)[-1] == (names.free, start, *[20 * MIB] * sized)
    for call in (arena.map, lambda: arena.empty((1,), torch.float32)):
        with pytest.raises(LullmError, match="the arena 'weights' is closed"):
            call()
    arena.release()
    arena.close()
    fake.set_granularity(2 * MIB)


def test_tensors_keep_their_addresses_and_lose_their_contents(fake, kind):
    arena = Arena(fake.build(kind), "weights", 4 * MIB)
    weight = arena.empty((300, 7), torch.bfloat16).normal_()
    scale = arena.empty((3,), torch.float32).fill_(2.0)
    assert weight.data_ptr() == arena.base_address and scale.data_ptr() == arena.base_address + 4224
    assert weight.untyped_storage().nbytes() == weight.nbytes == 4200  # a storage of its own, not the whole arena's
    addresses = weight.data_ptr(), scale.data_ptr()
    for _ in range(3):
        arena.release()
        with pytest.raises(LullmError, match="'weights' is released; map\\(\\) it first"):
            arena.empty((1,), torch.float32)
        arena.map()
        assert not weight.any() and not scale.any()  # new memory
        weight.fill_(1.5)
        scale.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert (weight == 1.5).all() and scale.tolist() == [1.0, 2.0, 3.0]
    assert (weight.data_ptr(), scale.data_ptr()) == addresses


def test_released_memory_cannot_be_touched(fake_driver_path):
    """The fake faults where a device would, so the tests above cannot pass by reading what should be gone."""
    script = f"""
import dataclasses, torch
from lullm.arena.arena import Arena
from lullm.arena.driver.npu import npu_backend
backend = npu_backend(library={str(fake_driver_path)!r}, initialize=lambda index: None)
arena = Arena(dataclasses.replace(backend, dlpack_device=(1, 0)), "weights", 1)
tensor = arena.empty((4,), torch.float32).fill_(1)
print("mapped", flush=True)
arena.release()
tensor.fill_(2)
print("alive", flush=True)
"""
    result = ready_run([sys.executable, "-c", script])
    assert result.stdout == "mapped\n" and result.returncode < 0


def test_a_chunk_without_a_byte(fake, kind):
    with pytest.raises(CacheSizeError, match="a chunk needs at least one byte"):
        Arena(fake.build(kind), "kv_cache", 1, chunk_bytes=0)


def test_twenty_cycles_leak_nothing(fake, kind, names):
    arena = Arena(fake.build(kind, chunk_bytes=2 * MIB), "weights", 6 * MIB)
    tensor = arena.empty((MIB,), torch.float32)
    before, address = fake.counts(), tensor.data_ptr()
    fake.reset()
    for cycle in range(20):
        arena.release()
        assert fake.counts()["handles"] == fake.counts()["mappings"] == 0
        arena.map()
        assert tensor.fill_(cycle)[-1] == cycle and tensor.data_ptr() == address
    assert fake.counts() == before
    calls = fake.names()
    assert calls.count(names.create) == calls.count(names.release) == calls.count(names.unmap) == 60


@pytest.mark.parametrize("closes", [True, False])
def test_addresses_live_as_long_as_tensors(fake, kind, names, closes):
    arena = Arena(fake.build(kind), "weights", 1)
    tensor = arena.empty((4,), torch.float32)
    inner = tensor[1:3].view(torch.int32)
    if closes:
        arena.close()
        assert fake.counts()["handles"] == 0
    del arena, tensor
    gc.collect()
    assert fake.counts()["ranges"] == 1  # somebody still points there
    assert fake.counts()["handles"] == (0 if closes else 1)
    death = threading.Thread(target=lambda last: last.clear(), args=([inner],))
    del inner
    death.start()
    death.join()
    gc.collect()
    assert fake.counts()["ranges"] == fake.counts()["handles"] == 0


def test_any_thread_gets_the_context_first(fake, kind, names):
    arena = Arena(fake.build(kind, device_index=1, chunk_bytes=2 * MIB), "weights", 2 * MIB)
    fake.reset()

    def cycle():
        arena.release()
        arena.map()

    thread = threading.Thread(target=cycle)
    thread.start()
    thread.join()
    calls = fake.calls()
    assert arena.state is ArenaState.MAPPED
    assert calls[0][0] == names.make_current and calls[0][1] == (0x7000000001 if kind == "cuda" else 1)
    assert calls[1][0] == names.unmap


def test_the_primary_context_is_torchs_and_is_given_back(fake):
    order = []
    backend = fake.build("cuda", device_index=1, initialize=lambda: order.extend(fake.names()))
    assert order == []  # torch first
    assert fake.names() == [
        "cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",
        "cuMemGetAllocationGranularity",
    ]  # fmt: skip
    arena = Arena(backend, "weights", 1)
    tensor = arena.empty((1,), torch.float32)
    del backend, arena
    gc.collect()
    assert fake.counts()["contexts"] == 1  # the tensor's memory needs it
    del tensor
    gc.collect()
    assert fake.counts()["contexts"] == 0
    assert fake.names()[-1] == "cuDevicePrimaryCtxRelease_v2"

    fake.fail("cuMemGetAllocationGranularity", 1, 3)
    with pytest.raises(LullmError, match="cuMemGetAllocationGranularity failed with 3: CUDA_ERROR_FAKE, the fake"):
        fake.build("cuda")
    assert fake.counts()["contexts"] == 0
    fake.fail("no virtual memory", 0, 0)
    with pytest.raises(UnsupportedError, match="CUDA device 0 has no virtual memory"):
        fake.build("cuda")
    with pytest.raises(LullmError, match="cuDeviceGet \\(to find device 9\\) failed with 101"):
        fake.build("cuda", device_index=9)


def test_two_engines_in_one_process(fake, kind):
    backend = fake.build(kind)
    one, two = Arena(backend, "weights", 1), Arena(fake.build(kind), "weights", 1)
    ones, twos = one.empty((4,), torch.float32).fill_(1), two.empty((4,), torch.float32).fill_(2)
    one.release()
    assert (twos == 2).all()
    one.map()
    two.release()
    assert not ones.any() and ones.data_ptr() != twos.data_ptr()


def test_layouts_are_those_of_the_headers():
    """Sizes and offsets as a C compiler gives them for cuda.h (13.0), hip_runtime_api.h (7) and acl_rt.h."""

    def layout(struct):
        return [getattr(struct, name).offset for name, _ in struct._fields_]

    assert layout(AllocationProperties) == [0, 4, 8, 12, 16, 24, 25, 26, 28]
    assert layout(AccessDescription) == [0, 4, 8]
    assert layout(PhysicalMemoryProperties) == [0, 4, 8, 12, 16, 24]
