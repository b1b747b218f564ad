"""Arenas that are mapped chunk by chunk beside the copies into them."""

import contextlib
import dataclasses
import threading

import pytest
import torch

from lullm.arena.arena import Arena, ArenaState
from lullm.arena.backup import Backup
from lullm.arena.chunk_store import MemoryStore
from lullm.arena.host import HostArena
from lullm.arena.pinned import PinnedArena
from lullm.errors import WakeUpError
from lullm.units import MIB
from lullm.worker.sleep.arena_mapping import ArenaMapping

CHUNK, NUM_CHUNKS = 2 * MIB, 4


class Gate:
    """Lets calls through: all of them while it is open, else as many as it has turns."""

    def __init__(self):
        self.turns, self.is_open = threading.Semaphore(0), True

    def before(self, call):
        def gated(*args):
            assert self.is_open or self.turns.acquire(timeout=10)
            return call(*args)

        return gated


@contextlib.contextmanager
def sleeping(fake):
    """(the gate, a released arena, a tensor in each of its chunks)."""
    gate, backend = Gate(), fake.build("cuda")
    backend = dataclasses.replace(backend, create_and_map=gate.before(backend.create_and_map))
    arena = Arena(backend, "weights", NUM_CHUNKS * CHUNK, CHUNK)
    tensors = [arena.empty((CHUNK,), torch.uint8).fill_(number + 1) for number in range(NUM_CHUNKS)]
    backup = Backup(MemoryStore(HostArena("backup", NUM_CHUNKS * CHUNK), CHUNK), "weights", backend=backend)
    backup.save(tensors)
    arena.release()
    gate.is_open = False
    fake.reset()
    yield gate, arena, tensors, backup
    backup.close()
    arena.close()


def test_a_chunk_is_filled_while_the_next_one_is_mapped(fake):
    """Contents arrive, and a copy is on its way before the driver has made the memory behind it."""
    with sleeping(fake) as (gate, arena, tensors, backup):
        gate.turns.release()
        mapping = ArenaMapping([arena])

        def places():
            for tensor in tensors:
                yield mapping.awaited(tensor)
                gate.turns.release()  # the next chunk is mapped behind this one's copy

        backup.restore(places())
        mapping.finish([arena])
        assert mapping.end() == [] and arena.state is ArenaState.MAPPED
        assert [tensor.unique().tolist() for tensor in tensors] == [[1], [2], [3], [4]]
        order = [name for name in fake.names() if name in ("cuMemCreate", "cuMemcpyHtoDAsync_v2")]
        assert order == ["cuMemCreate", "cuMemcpyHtoDAsync_v2"] * NUM_CHUNKS


def test_a_refusal_reaches_whoever_waits(fake):
    """It says how much came back, and what the driver lacks."""
    with sleeping(fake) as (gate, arena, tensors, _):
        gate.is_open = True
        fake.fail("cuMemCreate", 3, 2)
        mapping = ArenaMapping([arena])
        assert mapping.awaited(tensors[1]) is tensors[1]
        with pytest.raises(WakeUpError, match=r"'weights' stays released: 4.0 MiB of 8.0 MiB came back, .*OUT_OF_MEM"):
            mapping.awaited(tensors[2])
        assert mapping.end() == [arena]
        assert arena.state is ArenaState.PARTLY and fake.counts()["handles"] == 2
        arena.release()
        assert fake.counts()["handles"] == 0


def test_a_refusal_is_told_to_its_own_arena_alone(fake):
    """Those before it are there."""
    with sleeping(fake) as (gate, arena, tensors, _):
        gate.is_open = True
        other = Arena(arena.backend, "kv_cache", 2 * CHUNK, CHUNK)
        other.release()
        fake.fail("cuMemCreate", NUM_CHUNKS + 2, 2)
        mapping = ArenaMapping([arena, other])
        mapping.finish([arena])
        assert mapping.covers([other]) and not mapping.covers([HostArena("x", CHUNK)])
        with pytest.raises(WakeUpError, match="'kv_cache' stays released: 2.0 MiB of 4.0 MiB came back"):
            mapping.finish([other])
        assert mapping.end() == mapping.end() == [other]
        other.close()


def test_at_the_end_nothing_more_is_mapped(fake):
    with sleeping(fake) as (gate, arena, tensors, _):
        gate.turns.release()
        mapping = ArenaMapping([arena])
        mapping.awaited(tensors[0])
        mapping._is_wanted = False  # what `end` says, before the next turn
        gate.turns.release()
        assert mapping.end() == [arena]
        assert fake.counts()["handles"] <= 2


def test_arenas_in_their_order_and_memory_of_others(fake):
    """A pinned one in one piece; a tensor that lies elsewhere is there."""
    with sleeping(fake) as (gate, arena, _, _):
        pinned = PinnedArena(arena.backend, "kv_swap", CHUNK)
        pinned.release()
        gate.is_open = True
        mapping = ArenaMapping([arena, pinned])
        stranger = torch.zeros(3)
        assert mapping.awaited(stranger) is stranger
        mapping.finish([arena, pinned])
        assert fake.names("cuCtxSetCurrent")[-2:] == ["cuMemSetAccess", "cuMemHostRegister_v2"]
        assert mapping.end() == []
        pinned.close()
