"""HostArena: addresses, alignment, limits, lazily taken memory, and what closing does to tensors in use."""

import gc
import subprocess
import sys

import pytest
import torch

from lullm.arena.host import ALIGNMENT, HostArena
from lullm.errors import CacheSizeError, LullmError
from lullm.units import MIB


def test_tensors_are_aligned_disjoint_views():
    arena = HostArena("weights", 3 * MIB)
    assert arena.capacity_bytes == 4 * MIB and arena.tag == "weights" and arena.used_bytes == 0
    end = arena.base_address
    for shape, dtype in [((3, 5), torch.float32), ((7,), torch.bfloat16), ((1, 2, 3), torch.int64), ((), torch.uint8)]:
        tensor = arena.empty(shape, dtype)
        assert tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous()
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert tensor.data_ptr() >= end
        end = tensor.data_ptr() + tensor.nbytes
        assert end == arena.base_address + arena.used_bytes
        assert not tensor.any()
        tensor.fill_(1)


def test_the_memory_belongs_to_the_arena():
    arena = HostArena("kv_cache", MIB)
    first, second = arena.empty((256,), torch.float32), arena.empty((256,), torch.float32)
    first.fill_(3.0)
    assert not second.any()
    del first
    gc.collect()
    assert arena.empty((1,), torch.float32).data_ptr() == second.data_ptr() + 1024  # nothing is reused


def test_an_empty_tensor():
    arena = HostArena("kv_cache", 1)
    assert arena.empty((0, 4), torch.float32).shape == (0, 4)
    assert arena.used_bytes == 0


def test_full():
    arena = HostArena("kv_cache", 2 * MIB)
    arena.empty((MIB,), torch.uint8)
    with pytest.raises(CacheSizeError, match="'kv_cache' is full: 1.0 MiB asked for, 1.0 MiB of 2.0 MiB left"):
        arena.empty((MIB + 1,), torch.uint8)
    assert arena.used_bytes == MIB
    arena.empty((MIB,), torch.uint8)  # what fits still fits
    with pytest.raises(CacheSizeError, match="0 B of 2.0 MiB left"):
        arena.empty((1,), torch.uint8)


@pytest.mark.parametrize("capacity_bytes", [0, -5, 1 << 60, 1 << 80])
def test_impossible_sizes(capacity_bytes):
    with pytest.raises(CacheSizeError, match="'kv_cache'"):
        HostArena("kv_cache", capacity_bytes)


def test_close():
    arena = HostArena("weights", MIB)
    tensor = arena.empty((1000,), torch.float32)
    tensor.fill_(5.0)
    arena.close()
    arena.close()
    assert not tensor.any()  # its pages are gone, its address is not
    tensor.fill_(1.0)
    with pytest.raises(LullmError, match="closed"):
        arena.empty((1,), torch.float32)


RESIDENCY = """
import gc, mmap, torch
from lullm.arena.host import HostArena

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE

MIB = 1 << 20
torch.ones(1000).sum()
start = resident_bytes()
arena = HostArena("kv_cache", 256 * MIB)
tensor = arena.empty((256 * MIB,), torch.uint8)
made = resident_bytes() - start
tensor[: 64 * MIB].fill_(1)
touched = resident_bytes() - start
{release}
gc.collect()
released = resident_bytes() - start
print(made // MIB, touched // MIB, released // MIB)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/statm")
@pytest.mark.parametrize("release", ["arena.close()", "arena.close(); del tensor", "del arena, tensor"])
def test_physical_memory_comes_at_the_first_touch_and_goes(release):
    script = RESIDENCY.format(release=release)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    made, touched, released = map(int, result.stdout.split())
    assert made < 8
    assert 60 <= touched < 80
    assert released < 8
