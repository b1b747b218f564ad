"""Backups of a device's memory over the fake driver, whose copies run when somebody waits for them and not before.

So a wait that is missing shows: stale bytes are hashed, or a place is read before its bytes are there.
"""

import dataclasses
import gc

import pytest
import torch

from lullm.arena.arena import Arena
from lullm.arena.backup import Backup
from lullm.arena.checksum import Xxh3Digest
from lullm.arena.chunk_store import FileStore, MemoryStore
from lullm.arena.host import HostArena
from lullm.arena.pinned import PinnedArena
from lullm.arena.transfer import Transfer
from lullm.errors import CacheSizeError, LullmError, UnsupportedError, WakeUpError
from lullm.units import KIB, MIB

SIZES = [1, 3 * MIB, MIB + 5, 700 * KIB]


@pytest.fixture
def make_store(request, tmp_path):
    made = []

    def make(target, chunk_bytes=MIB):
        made.append(FileStore(tmp_path) if target == "disk" else memory_store(chunk_bytes))
        return made[-1]

    yield make
    for store in made:
        store.close()


def memory_store(chunk_bytes=MIB):
    return MemoryStore(HostArena("backup", 16 * MIB), chunk_bytes)


def filled(arena, sizes=SIZES):
    return [arena.empty((size,), torch.uint8).random_(0, 256) for size in sizes]


@pytest.mark.parametrize("target", ["ram", "disk"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_out_and_in_again(fake, kind, make_store, target, num_threads):
    backend = fake.build(kind, chunk_bytes=2 * MIB)
    arena = Arena(backend, "weights", 6 * MIB)
    tensors = filled(arena)
    contents = [tensor.clone() for tensor in tensors]
    backup = Backup(make_store(target), "x", Xxh3Digest, backend, num_threads)
    for _ in range(2):  # the second time over what is kept
        backup.save(tensors)
        arena.release()
        arena.map()
        assert not tensors[1].any()
        backup.restore(tensors)
        assert all(map(torch.equal, tensors, contents))
        assert fake.counts()["streams"] == fake.counts()["events"] == 0
        tensors[1].add_(1)
        contents[1] = tensors[1].clone()
    moved = backup.moved(make_store("ram"))
    moved.save(tensors)
    tensors[1].zero_()
    moved.restore(tensors)
    assert all(map(torch.equal, tensors, contents))


def test_a_chunk_is_on_its_way_while_the_one_before_is_waited_for(fake, make_store):
    backend = fake.build("cuda")
    arena = Arena(backend, "weights", 6 * MIB)
    [tensor] = filled(arena, [3 * MIB])
    backup = Backup(make_store("ram"), "x", Xxh3Digest, backend)
    short = {"cuMemcpyDtoHAsync_v2": "copy", "cuMemcpyHtoDAsync_v2": "copy", "cuEventSynchronize": "wait",
             "cuStreamSynchronize": "drain"}  # fmt: skip

    def events():
        found = [short[name] for name in fake.names() if name in short]
        fake.reset()
        return found

    fake.reset()
    backup.save([tensor])
    assert events() == ["copy", "copy", "wait", "copy", "wait", "wait", "drain"]
    backup.restore([tensor])
    assert events() == ["copy", "copy", "copy", "drain"], "nothing waits for a copy into the device"


@pytest.mark.parametrize("target", ["ram", "disk"])
def test_one_room_for_all(fake, make_store, target):
    """As KV blocks are gathered: what is handed over next overwrites what was handed over before."""
    backend = fake.build("cuda")
    arena = Arena(backend, "gather", 2 * MIB)
    room = arena.empty((MIB + 100,), torch.uint8)

    def gathered():
        for value in range(5):
            yield room.fill_(value)

    backup = Backup(make_store(target), "x", Xxh3Digest, backend)
    backup.save(gathered(), in_turn=True)
    found = []

    def places():
        for _ in range(5):
            room.fill_(77)
            yield room
            found.append(room.unique().tolist())

    backup.restore(places(), in_turn=True)
    assert found == [[value] for value in range(5)]


def test_host_tensors_beside_a_device(fake, make_store):
    """The host pool is saved with the device pool. Its tensors are no business of the driver."""
    backend = dataclasses.replace(fake.build("cuda"), dlpack_device=(2, 0))
    backup = Backup(make_store("ram"), "x", Xxh3Digest, backend)
    tensor = torch.arange(1000)
    fake.reset()
    backup.save([tensor])
    place = torch.zeros_like(tensor)
    backup.restore([place])
    assert torch.equal(place, tensor) and not any("Memcpy" in name for name in fake.names())


@pytest.mark.parametrize(
    "step", ["cuStreamCreate", "cuMemcpyDtoHAsync_v2", "cuEventCreate", "cuEventRecord", "cuEventSynchronize"]
)
def test_a_driver_that_fails_on_the_way(fake, make_store, step):
    backend = fake.build("cuda")
    arena = Arena(backend, "weights", 6 * MIB)
    tensors = filled(arena)
    backup = Backup(make_store("ram"), "x", Xxh3Digest, backend)
    fake.fail(step, 1, 700)
    with pytest.raises(LullmError, match=f"{step} failed with 700"):
        backup.save(tensors)
    assert fake.counts()["streams"] == fake.counts()["events"] == 0
    backup.save(tensors)
    fake.fail("cuMemcpyHtoDAsync_v2", 2, 700)
    with pytest.raises(LullmError, match="cuMemcpyHtoDAsync_v2 failed with 700"):
        backup.restore(tensors)
    assert fake.counts()["streams"] == fake.counts()["events"] == 0


def test_a_flipped_bit_with_many_threads(fake, make_store):
    backend = fake.build("cuda")
    arena = Arena(backend, "weights", 8 * MIB)
    [tensor] = filled(arena, [7 * MIB])
    backup = Backup(make_store("ram"), "the weights", Xxh3Digest, backend, 4)
    backup.save([tensor])
    backup.store.get(5, MIB)[3] ^= 1
    with pytest.raises(WakeUpError, match="the weights is damaged"):
        backup.restore([tensor])
    assert fake.counts()["streams"] == 0


def test_an_error_on_the_host_ends_it_after_what_flies_has_landed(fake):
    backend = fake.build("cuda")
    arena = Arena(backend, "weights", 1)
    [tensor] = filled(arena, [5 * KIB])
    buffer = torch.zeros_like(tensor)
    with pytest.raises(OSError, match="disk full"), Transfer(backend) as transfer:
        transfer.copy_out(buffer, tensor)
        assert not buffer.any()
        raise OSError("disk full")
    assert torch.equal(buffer, tensor) and fake.counts()["streams"] == 0


class TestPinned:
    def test_pinned_while_mapped(self, fake):
        backend = fake.build("cuda")
        fake.reset()
        arena = PinnedArena(backend, "kv_swap", 3 * MIB)
        tensor = arena.empty((100,), torch.uint8).fill_(3)
        size = arena.capacity_bytes
        pin = ("cuMemHostRegister_v2", arena.base_address, size, 3)  # portable, at the same address on the device
        assert fake.calls("cuCtxSetCurrent") == [pin]
        arena.map()
        fake.reset()
        arena.release()
        arena.release()
        assert fake.calls("cuCtxSetCurrent") == [("cuMemHostUnregister", arena.base_address)]
        assert not tensor.any(), "the pages are gone"
        arena.map()
        assert fake.calls("cuCtxSetCurrent")[-1] == pin
        arena.close()
        arena.close()
        assert fake.counts()["pins"] == 0

    def test_forgotten(self, fake):
        """Nobody closes it. The driver must hear of it before the addresses are somebody else's."""
        arena = PinnedArena(fake.build("cuda"), "kv_swap", 1)
        tensor = arena.empty((100,), torch.uint8)
        del arena
        gc.collect()
        assert fake.counts()["pins"] == 1, "somebody still points there"
        del tensor
        gc.collect()
        assert fake.counts()["pins"] == 0

    def test_refusals(self, fake):
        backend = fake.build("rocm")
        fake.fail("hipHostRegister", 1, 2)
        words = r"'kv_swap': hipHostRegister \(to pin 4.0 MiB of host memory\) failed with 2.*free memory of the host"
        with pytest.raises(CacheSizeError, match=f"of pinned host memory for {words}"):
            PinnedArena(backend, "kv_swap", 3 * MIB)
        arena = PinnedArena(backend, "kv_swap", 3 * MIB)
        fake.fail("hipHostUnregister", 1, 7)
        with pytest.raises(LullmError, match="hipHostUnregister"):
            arena.release()
        arena.release()
        fake.fail("hipHostRegister", 1, 2)
        with pytest.raises(WakeUpError, match="'kv_swap' stays released"):
            arena.map()
        arena.map()
        arena.close()
        with pytest.raises(UnsupportedError, match="cannot be pinned for Ascend devices yet"):
            PinnedArena(fake.build("npu"), "kv_swap", 1)
