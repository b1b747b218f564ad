"""Images of groups and blocks: random workloads move to another scheduler, with pools of other sizes, time and again.

The simulated worker checks at every step that attention would see the right keys, and that nothing is lost.
"""

import random

import msgspec
import pytest
from kit.sched.simulation import Simulation, State
from kit.sched.workload import Workload

from lullm.errors import HibernationError
from lullm.kv.image.image import BlockSpaceImage
from lullm.kv.state import snapshots
from lullm.sched.image.group import GroupImage, build_group
from lullm.sched.image.groups import Returning, bring_back, find_room, take_groups
from lullm.sched.preemption import PreemptionPolicy

VOCAB_SIZE = 8


def through_bytes(image, kind):
    """An image as another process reads it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(image), type=kind)


def moved(old, new):
    """Bring all groups of one simulation into another one, contents of blocks included: [(old group, new group)]."""
    found = take_groups(old.scheduler)
    blocks = through_bytes(old.block_space.images.take(), BlockSpaceImage)
    returning = []
    for group, image in found:
        image = through_bytes(image, GroupImage)
        sizes = new.limits.max_model_len, VOCAB_SIZE, new.block_space.block_size
        built, search = build_group(group.request, image, 0.0, *sizes)
        returning.append(Returning(built, search, image))
    room = find_room(new.scheduler, returning, blocks)
    used = new.block_space.images.begin(blocks, room.device, room.host)
    for ids, of_pool, old_slots, new_slots in (
        (used.device, blocks.device, old.memory.slots, new.memory.slots),
        (used.host, blocks.host, old.memory.host_slots, new.memory.host_slots),
    ):
        for block_id, old_id in zip(ids, of_pool.block_ids, strict=True):
            if block_id >= 0:
                new_slots[block_id] = list(old_slots[old_id])
    new.scheduler.roster._num_seqs_made = old.scheduler.roster._num_seqs_made  # ids stay unique in the test
    bring_back(new.scheduler, returning, room.kept, blocks)
    new.block_space.check_conservation()
    return [(group, each.group) for (group, _), each in zip(found, returning, strict=True)], room


class MovingWorkload(Workload):
    """Now and then everything moves to a simulation that `build(rng)` makes."""

    def __init__(self, build, rng, **options):
        super().__init__(build(rng), rng, **options)
        self.build = build
        self.num_moves = self.num_moves_refused = self.num_kept = self.num_cached = 0

    def _take(self, updates):
        super()._take(updates)
        if self.rng.random() < 0.05:
            self._move()

    def _move(self):
        super()._take(self.sim.drain())
        super()._take(self.sim.scheduler.take_outgrown())
        other = self.build(self.rng)
        other.now = self.sim.now
        try:
            pairs, room = moved(self.sim, other)
        except HibernationError as error:
            assert "KV blocks" in str(error)
            self.num_moves_refused += 1
            return
        new_of = {id(old): new for old, new in pairs}
        for old, new in pairs:
            assert old.request is new.request and old.num_unborn == new.num_unborn
            for before, after in zip(old.seqs, new.seqs, strict=True):
                assert before.token_ids == after.token_ids
                self.ends[after.seq_id] = self.ends[before.seq_id]
        self.accepted = [new_of.get(id(group), group) for group in self.accepted]
        self.sim = other
        self.num_moves += 1
        self.num_kept += len(room.kept)
        self.num_cached += len(room.device)


WORKLOADS = {
    "recompute": {},
    "no cache": {"enable_prefix_caching": False},
    "swap": {"mode": "swap", "policy": "priority"},
    "prefill first": {"mode": "swap", "enable_chunked_prefill": False},
    "window": {"windows": (6, None), "mode": "swap"},
    "windows": {"windows": (4, 9), "mode": "swap"},
    "states": {"windows": (None, State(3)), "mode": "swap"},
    "ahead": {"max_in_flight": 3, "mode": "swap"},
    "drafts": {"most_drafts": 4},
}


# Others of one group hold a block whose hash only one of them knows; one of a group that runs holds no block.
FOUND = [("window", "window5"), ("windows", "windows32"), ("windows", "windows145")]


@pytest.mark.parametrize(("name", "seed"), [*((name, name) for name in WORKLOADS), *FOUND])
def test_a_workload_that_moves(monkeypatch, name, seed):
    monkeypatch.setattr(snapshots, "LEAST_INTERVAL", 8)
    options = {"policy": "fcfs", **WORKLOADS[name]}
    mode = options.pop("mode", "recompute")

    def build(rng):
        num_blocks = rng.choice([44, 60, 90])
        num_host_blocks = rng.choice([6, 64]) if mode == "swap" else 0
        return Simulation(
            num_blocks=num_blocks,
            max_num_seqs=rng.choice([6, 8]),
            max_num_batched_tokens=64 if name == "prefill first" else 16,
            num_host_blocks=num_host_blocks,
            preemption=PreemptionPolicy(mode),
            **options,
        )

    workload = MovingWorkload(build, random.Random(seed), pooling_share=0.2)
    workload.run(700)
    assert workload.num_moves > 20 and workload.num_kept > 20 and workload.num_cached > 100


def test_nothing_is_computed_again_where_there_is_room():
    old, new = Simulation(), Simulation(num_blocks=200)
    for number in range(4):
        old.add(str(number), [1, 0, number % 2] * 9, n=2 if number == 1 else 1, max_tokens=20)
    for _ in range(9):
        old.step()
    pairs, room = moved(old, new)
    assert len(room.kept) == 4 and all(
        [seq.num_computed_tokens for seq in before.seqs] == [seq.num_computed_tokens for seq in after.seqs]
        for before, after in pairs
    )
    assert new.block_space.num_used_blocks == old.block_space.num_used_blocks, "shared blocks stay shared"
    num_tokens = sum(map(len, (seq.token_ids for _, group in pairs for seq in group.seqs)))
    ends = [update.seq for update in new.run()]
    assert len(ends) == 5 and sum(plan.num_tokens for plan in new.plans) < num_tokens


def test_where_one_finds_no_room_none_behind_it_runs():
    """One more that has room keeps it from blocks until its own end."""
    old, new = Simulation(), Simulation(num_blocks=12)
    for request_id, prompt_len in (("first", 9), ("long", 30), ("last", 9)):
        old.add(request_id, [1 + len(request_id)] * prompt_len, max_tokens=9)
    for _ in range(6):
        old.step()
    assert len(old.scheduler.running) == 3
    _, room = moved(old, new)
    assert room.kept == {0} and [group.request_id for group in new.scheduler.running] == ["first"]
    assert [group.request_id for group in new.scheduler.waiting] == ["long", "last"]
    new.run()
    assert new.scheduler.roster.request_ids == []


def test_cached_prefixes_that_were_used_last_come_first():
    old, new = Simulation(num_blocks=40), Simulation(num_blocks=9)
    for number, token in enumerate((2, 3, 4)):  # one after the other
        old.add(str(number), [token] * 9, max_tokens=1)
        old.run()
    _, room = moved(old, new)
    assert len(room.device) == 6
    for token, num_cached in ((4, 8), (3, 8), (2, 8)):
        group = new.add(str(token), [token] * 9, max_tokens=1)
        new.run()
        assert group.num_cached_tokens == num_cached
    smaller = Simulation(num_blocks=4)
    moved(old, smaller)
    groups = [smaller.add(str(token), [token] * 9, max_tokens=1) for token in (4, 2)]
    smaller.run()
    assert [group.num_cached_tokens for group in groups] == [8, 0]


def test_what_can_never_run_is_refused():
    old = Simulation(num_blocks=40)
    old.add("long", [1] * 40, max_tokens=20)
    old.step()
    for options, words in (
        ({"num_blocks": 8, "max_model_len": 64}, "needs 10 KV blocks, and this engine has 8"),
        ({"max_model_len": 32}, "no engine can have made"),
    ):
        with pytest.raises(HibernationError, match=words):
            moved(old, Simulation(**options))
    old.add("wide", [1], n=4)
    with pytest.raises(HibernationError, match=r"4 sequences, more than max_num_seqs=2 here"):
        moved(old, Simulation(max_num_seqs=2))
    assert len(old.run()) == 5, "the old one goes on"
