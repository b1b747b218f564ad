"""HostArena: addresses, alignment, limits, lazily taken memory, releases and their faults, tensors that outlive it."""

import ctypes
import gc
import subprocess
import sys

import pytest
import torch
from kit.ready_process import ready_run

from lullm.arena.arena import ALIGNMENT, Arena, ArenaState
from lullm.arena.host import HOST, HostArena
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
    for call in (lambda: arena.empty((1,), torch.float32), arena.map):
        with pytest.raises(LullmError, match="the arena 'weights' is closed"):
            call()
    arena.release()
    assert arena.state is ArenaState.CLOSED and arena.mapped_bytes == arena.num_chunks == 0


def test_release_and_map():
    arena = HostArena("weights", 4 * MIB)
    tensor = arena.empty((1000,), torch.float32)
    address = tensor.data_ptr()
    for value in range(1, 4):
        tensor.fill_(value)
        arena.release()
        assert arena.state is ArenaState.RELEASED and arena.mapped_bytes == 0
        assert not tensor.any()
        tensor.fill_(9)  # comes back by itself, so a second release is not skipped
        arena.release()
        assert not tensor.any()
        arena.map()
        arena.map()
        assert arena.state is ArenaState.MAPPED and arena.mapped_bytes == arena.capacity_bytes == 4 * MIB
    assert tensor.data_ptr() == address and arena.used_bytes == 4000


def test_chunks_are_no_smaller_than_a_huge_page():
    arena = Arena(HOST, "kv_cache", 8 * MIB, chunk_bytes=MIB)
    tensor = arena.empty((8 * MIB,), torch.uint8).fill_(1)
    assert arena.num_chunks == 4
    arena.release()
    assert arena.mapped_bytes == 0 and not tensor.any()


def test_a_release_that_the_system_refuses():
    arena = HostArena("weights", 2 * MIB)
    tensor = arena.empty((1024,), torch.float32).fill_(3)
    libc = ctypes.CDLL(None, use_errno=True)
    address, size = ctypes.c_void_p(arena.base_address), ctypes.c_size_t(4096)
    if libc.mlock(address, size):
        pytest.skip("this machine locks no memory")
    with pytest.raises(LullmError, match="'weights' is not released: .*MADV_DONTNEED.* failed with EINVAL .*mlock"):
        arena.release()
    assert arena.state is ArenaState.MAPPED and (tensor == 3).all()
    libc.munlock(address, size)
    arena.release()
    assert arena.state is ArenaState.RELEASED and not tensor.any()


def test_no_addresses_left():
    script = """
import resource, torch
from lullm.arena.host import HostArena
from lullm.errors import CacheSizeError
small = HostArena("weights", 1)
resource.setrlimit(resource.RLIMIT_AS, (64 << 30, resource.RLIM_INFINITY))
try:
    HostArena("kv_cache", 1 << 40)
except CacheSizeError as error:
    print(error)
print(small.empty((4,), torch.float32).fill_(1).sum().item())
"""
    result = ready_run([sys.executable, "-c", script])
    assert (
        "for 'kv_cache': mmap of 1024.0 GiB failed with ENOMEM (Cannot allocate memory); ask for less" in result.stdout
    )
    assert result.stdout.endswith("4.0\n") and result.returncode == 0


def test_tensors_may_outlive_everything():
    """At the end of a process modules go in any order, and tensors with them."""
    script = """
import os, sys, threading, torch
from lullm.arena.host import HostArena
tensor = HostArena("weights", 1).empty((4,), torch.float32)
torch.kept = tensor
sys.kept = [tensor.view(2, 2)]
class Late:
    def __init__(self): self.tensor = HostArena("kv_cache", 1).empty((4,), torch.float32)
    def __del__(self, write=os.write): write(1, b"late %d" % self.tensor.fill_(1).sum().item())
torch.late = Late()
threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (result.stdout, result.stderr, result.returncode) == ("late 4", "", 0)


def test_storage_and_autograd_see_an_ordinary_tensor():
    arena = HostArena("weights", MIB)
    arena.empty((3,), torch.int8)
    tensor = arena.empty((2, 4), torch.bfloat16)
    assert tensor.untyped_storage().nbytes() == 16 and tensor.storage_offset() == 0 and not tensor._is_view()
    parameter = torch.nn.Parameter(tensor.fill_(2))
    (parameter.float() ** 2).sum().backward()
    assert parameter.data_ptr() == tensor.data_ptr() and (parameter.grad == 4).all()
    with torch.inference_mode():
        assert arena.empty((2,), torch.float32).fill_(1).is_inference()


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
    result = ready_run([sys.executable, "-c", script])
    made, touched, released = map(int, result.stdout.split())
    assert made < 8
    assert 60 <= touched < 80
    assert released < 8
