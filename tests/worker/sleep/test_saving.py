"""What a sleep writes, reuses and gives back, planned from plain facts."""

import pytest
import torch

from lullm.arena.backup import Backup
from lullm.arena.chunk_store import CHUNK_BYTES, FileStore, MemoryStore
from lullm.arena.host import HostArena
from lullm.errors import SleepError
from lullm.types.sleep import KV_CACHE, WEIGHTS, SleepCommand, UsedBlocks
from lullm.worker.sleep.backups import _device_chunk_bytes
from lullm.worker.sleep.saving import NOTHING, Saved, Saving, check_room, plan_saving

BLOCK_BYTES = 1000
USED = UsedBlocks([4, 5], [6])
NO_BLOCKS = UsedBlocks([], [])


class Store:
    """The weights 'a' (400 bytes) and 'b' (80); 'b' is modified. The facts that a plan reads of a `WeightStore`."""

    version = 3
    modified = {"b"}
    names = frozenset("ab")

    def parameters(self, names):
        return [torch.zeros(100 if name == "a" else 20) for name in sorted(names)]


def backup(target, num_bytes):
    store = FileStore() if target == "disk" else MemoryStore(HostArena("backup", CHUNK_BYTES))
    made = Backup(store, "a test")
    made.save([torch.zeros(num_bytes, dtype=torch.uint8)])
    return made


@pytest.fixture
def ram():
    made = backup("ram", 480)
    yield made
    made.close()


@pytest.fixture
def disk():
    made = backup("disk", 480)
    yield made
    made.close()


def plan(*actions, target="auto", used=NO_BLOCKS, saved=None, kept=None, is_accelerator=False):
    command = SleepCommand(1, actions, used, target)
    return plan_saving(command, Store(), BLOCK_BYTES, saved or {}, kept or {}, is_accelerator)


def test_a_cpu_saves_to_disk_what_the_checkpoint_lacks():
    assert plan((WEIGHTS, "offload"), (KV_CACHE, "offload"), used=USED) == [
        Saving(WEIGHTS, "offload", "disk", frozenset("b"), 80, backup_bytes=80),
        Saving(KV_CACHE, "offload", "disk", USED, 3000, backup_bytes=3000),
    ]


def test_in_front_of_a_device_host_memory_takes_all_weights_and_a_file_the_changed_ones():
    [weights] = plan((WEIGHTS, "offload"), is_accelerator=True)
    assert weights == Saving(WEIGHTS, "offload", "ram", frozenset("ab"), 480, backup_bytes=480, ram_bytes=480)
    [weights] = plan((WEIGHTS, "offload"), target="disk", is_accelerator=True)
    assert (weights.contents, weights.num_bytes) == (frozenset("b"), 80)


def test_no_used_block_needs_no_backup():
    assert plan((KV_CACHE, "offload")) == [Saving(KV_CACHE, "offload", "disk")]


def test_weights_that_are_kept_and_current_are_not_written_again(ram):
    kept = {WEIGHTS: Saved(ram, frozenset("ab"), version=3)}
    [weights] = plan((WEIGHTS, "offload"), kept=kept, is_accelerator=True)
    assert weights == Saving(WEIGHTS, "offload", "ram", frozenset("ab"), 0, "contents", 480)
    [weights] = plan((WEIGHTS, "offload"), kept=kept, target="disk", is_accelerator=True)
    assert (weights.reuses, weights.ram_bytes) == ("nothing", -480), "a sleep to disk gives them back"


def test_weights_that_are_kept_and_have_left_for_another_worker_are_written_again(ram):
    """Experts change places between workers, and no number does: a wake-up found other parameters than were saved."""
    kept = {WEIGHTS: Saved(ram, frozenset("ac"), version=3)}
    [weights] = plan((WEIGHTS, "offload"), kept=kept, is_accelerator=True)
    assert weights == Saving(WEIGHTS, "offload", "ram", frozenset("ab"), 480, "memory", 480, 0)


@pytest.mark.parametrize("version", [2, None])
def test_the_memory_of_stale_weights_is_used_again(ram, version):
    kept = {WEIGHTS: Saved(ram, frozenset("ab"), version)}
    [weights] = plan((WEIGHTS, "offload"), kept=kept, is_accelerator=True)
    assert weights == Saving(WEIGHTS, "offload", "ram", frozenset("ab"), 480, "memory", 480, 0)


def test_kept_memory_that_is_too_small_is_replaced(ram):
    used = UsedBlocks(list(range(CHUNK_BYTES // BLOCK_BYTES + 1)), [])
    [blocks] = plan((KV_CACHE, "offload"), used=used, kept={KV_CACHE: Saved(ram, USED, None)}, target="ram")
    assert (blocks.reuses, blocks.ram_bytes) == ("nothing", blocks.num_bytes - 480)


def test_a_move_leaves_the_old_backup_to_the_commit(ram, disk):
    held = {WEIGHTS: Saved(ram, frozenset("b"), 3), KV_CACHE: Saved(disk, USED, None)}
    moves = ((WEIGHTS, "move"), (KV_CACHE, "move"))
    assert plan(*moves, target="disk", saved=held) == [
        Saving(WEIGHTS, "move", "disk", frozenset("b"), 480, backup_bytes=480, ram_bytes=-480)
    ]
    assert plan(*moves, target="ram", saved=held) == [
        Saving(KV_CACHE, "move", "ram", USED, 480, backup_bytes=480, ram_bytes=480)
    ]
    assert plan(*moves, target="ram") == [], "there is nothing to move"


def test_what_is_given_up_frees_its_backups(ram):
    [dropped] = plan((KV_CACHE, "drop"), saved={KV_CACHE: Saved(ram, USED, None)})
    [discarded] = plan((WEIGHTS, "discard"), kept={WEIGHTS: Saved(ram, NOTHING, None)})
    assert (dropped.ram_bytes, dropped.releases) == (-480, False)
    assert (discarded.ram_bytes, discarded.releases, discarded.backup_bytes) == (-480, True, 0)


def test_room_is_looked_for_before_anything_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr("lullm.worker.sleep.saving.available_memory_bytes", lambda: 479)
    savings = plan((WEIGHTS, "offload"), is_accelerator=True)
    with pytest.raises(SleepError, match="480 B must be saved and memory has 479 B left; give backup='disk'"):
        check_room(savings, tmp_path)
    monkeypatch.setattr("lullm.worker.sleep.saving.available_memory_bytes", lambda: 480)
    check_room(savings, tmp_path)
    check_room(plan((WEIGHTS, "offload"), target="disk"), tmp_path)
    used = UsedBlocks(list(range(10)), [])
    monkeypatch.setattr("lullm.worker.sleep.saving.shutil.disk_usage", lambda path: type("Usage", (), {"free": 9999}))
    with pytest.raises(SleepError, match=f"must be saved and {tmp_path} has"):
        check_room(plan((KV_CACHE, "offload"), used=used), tmp_path)


@pytest.mark.parametrize(("num_mib", "expected"), [(0, 16), (1, 16), (17, 32), (64, 64), (16_000, 64)])
def test_a_small_backup_of_a_device_is_one_chunk(num_mib, expected):
    """Pinning 64 MiB for a few blocks would take 30 ms."""
    assert _device_chunk_bytes(num_mib << 20) == expected << 20
