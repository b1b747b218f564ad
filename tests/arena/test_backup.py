"""Backups: what was saved comes back, or an error does; nothing is left behind."""

import resource
import threading

import pytest
import torch
from kit.device.digests import DIGESTS, wrong_copies

from lullm.arena.backup import Backup
from lullm.arena.checksum import Xxh3Digest
from lullm.arena.chunk_store import CHUNK_BYTES, FileStore, MemoryStore
from lullm.arena.host import HostArena
from lullm.errors import WakeUpError

SIZES = [1, 5000, 0, CHUNK_BYTES - 5001, 2 * CHUNK_BYTES + 3, 7]  # within a chunk, to its end, across several


def memory_store():
    return MemoryStore(HostArena("backup", 4 * CHUNK_BYTES))


def contents():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in SIZES]


@pytest.fixture(params=["disk", "ram"])
def make_store(request, tmp_path):
    made = []

    def make():
        made.append(FileStore(tmp_path) if request.param == "disk" else memory_store())
        return made[-1]

    yield make
    for store in made:
        store.close()


def damage(backup, position):
    """Flip one bit of what is kept."""
    number, offset = divmod(position, CHUNK_BYTES)
    store = backup.store
    if backup.target == "ram":
        store._chunks[number][offset] ^= 1
        return
    store._set_direct(False)
    store._file.seek(position)
    byte = store._file.read(1)
    store._file.seek(position)
    store._file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("new_digest", DIGESTS)
def test_round_trip(make_store, tmp_path, new_digest):
    store = make_store()
    backup = Backup(store, "x", new_digest)
    saved = contents()
    backup.save(saved)
    assert backup.num_bytes == sum(SIZES) and backup.target == store.target
    for _ in range(2):
        places = [torch.zeros_like(tensor) for tensor in saved]
        backup.restore(places)
        assert all(map(torch.equal, places, saved))
    moved = backup.moved(memory_store())
    backup.close()
    backup.close()
    places = [torch.zeros_like(tensor) for tensor in saved]
    moved.restore(places)
    assert all(map(torch.equal, places, saved))
    assert list(tmp_path.iterdir()) == [], "the file has no name"


def test_a_place_is_complete_when_the_next_is_asked_for(make_store):
    backup = Backup(make_store(), "x")
    saved = contents()
    backup.save(iter(saved))
    taken = []

    def places():
        for tensor in saved:
            place = torch.zeros_like(tensor)
            yield place
            taken.append(place.clone())

    backup.restore(places(), in_turn=True)
    assert all(map(torch.equal, taken, saved))


def test_other_dtypes_keep_their_bits(make_store):
    saved = torch.tensor([float("nan"), -0.0, 1e-40], dtype=torch.float32).to(torch.bfloat16).view(3, 1)
    backup = Backup(make_store(), "x")
    backup.save([saved])
    place = torch.zeros_like(saved)
    backup.restore([place])
    assert torch.equal(place.view(torch.int16), saved.view(torch.int16))


@pytest.mark.parametrize("position", [0, CHUNK_BYTES + 77, sum(SIZES) - 1])
def test_a_flipped_bit(make_store, position):
    saved = contents()
    places = [torch.zeros_like(tensor) for tensor in saved]
    for new_digest in (Xxh3Digest, None):
        backup = Backup(make_store(), "some things", new_digest)
        backup.save(saved)
        damage(backup, position)
        if new_digest is not None:
            with pytest.raises(WakeUpError, match="some things is damaged"):
                backup.restore(places)
            with pytest.raises(WakeUpError):
                backup.moved(memory_store())
        else:
            backup.restore(places)
            wrong = torch.cat(places).bitwise_xor(torch.cat(saved))
            assert wrong.nonzero().flatten().tolist() == [position]
        backup.close()


@pytest.mark.pairs
@pytest.mark.parametrize("new_digest", DIGESTS)
@pytest.mark.parametrize("in_turn", [False, True])
def test_every_flip_right_after_the_save_is_noticed(make_store, in_turn, new_digest):
    """The checksums are complete when `save` returns; they were once computed behind it, of the damaged bytes."""
    saved = contents()
    places = [torch.zeros_like(tensor) for tensor in saved]
    backup = Backup(make_store(), "x", new_digest)
    for position in range(0, sum(SIZES), sum(SIZES) // 15):
        backup.save(saved, in_turn)
        damage(backup, position)
        with pytest.raises(WakeUpError, match="damaged"):
            backup.restore(places)


@pytest.mark.pairs
@pytest.mark.parametrize("new_digest", DIGESTS)
@pytest.mark.parametrize("in_turn", [False, True])
def test_a_copy_that_goes_wrong_is_noticed(make_store, in_turn, new_digest):
    """The checksum is of the tensor that was saved, not of its copy, whatever the pieces it comes back in."""
    backup = Backup(make_store(), "x", wrong_copies(new_digest))
    backup.save(contents(), in_turn)
    with pytest.raises(WakeUpError, match="damaged"):
        backup.restore([torch.zeros(sum(SIZES), dtype=torch.uint8)])


def test_shared_memory_is_hashed_before_it_changes(make_store):
    """As KV blocks are gathered: the next tensor overwrites the one before."""
    room = torch.empty(CHUNK_BYTES // 2 + 5, dtype=torch.uint8)
    backup = Backup(make_store(), "x")
    backup.save((room.fill_(value) for value in range(6)), in_turn=True)
    place = torch.empty(6 * len(room), dtype=torch.uint8)
    backup.restore([place])
    assert [row.unique().tolist() for row in place.view(6, -1)] == [[value] for value in range(6)]


@pytest.mark.parametrize("share", [0.4, 1.6])
def test_places_of_another_size(make_store, share):
    backup = Backup(make_store(), "x")
    backup.save([torch.ones(CHUNK_BYTES + 10, dtype=torch.uint8)])
    with pytest.raises(WakeUpError, match="less" if share > 1 else "more"):
        backup.restore([torch.zeros(int(CHUNK_BYTES * share), dtype=torch.uint8)])


@pytest.mark.parametrize("room", [0, 4096, CHUNK_BYTES + 12345])
def test_no_room_for_the_file(tmp_path, room):
    """The limit on a file's size stands for a full disk: the write that meets it fails half-way."""
    backup = Backup(FileStore(tmp_path), "x")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            backup.save(contents())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    backup.close()
    assert list(tmp_path.iterdir()) == []


def test_no_such_folder(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        FileStore(tmp_path / "nowhere")


def test_a_restore_that_fails_leaves_no_thread_to_garbage_collection(make_store):
    """An iterator that owned its thread joined it when it was collected: for ever, in a thread that just started."""
    backup = Backup(make_store(), "x")
    backup.save(contents())
    before = set(threading.enumerate())
    with pytest.raises(WakeUpError, match="holds more") as failed:
        backup.restore([torch.zeros(5, dtype=torch.uint8)])
    assert failed.traceback and set(threading.enumerate()) == before, "though the error still holds the frames"
