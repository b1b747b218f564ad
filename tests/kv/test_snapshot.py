"""Memory snapshots: owners, fill and content of every block, through sharing, swapping and the cache."""

import random

import pytest
from kit.sched.simulation import Simulation

from lullm.errors import InvalidRequestError
from lullm.kv.snapshot import BlockOwner, MemorySnapshot, PoolSnapshot
from lullm.sched.preemption import PreemptionPolicy


def snapshot(sim: Simulation) -> MemorySnapshot:
    return sim.block_space.snapshot([*sim.scheduler.running, *sim.scheduler.swapped])


def fills(pool: PoolSnapshot) -> list[int]:
    return [block.num_tokens for block in pool.blocks if block.owners]


def test_one_request_fills_its_blocks():
    sim = Simulation(num_blocks=6, block_size=4, max_num_batched_tokens=8)
    group = sim.add("a", [0] * 10, max_tokens=4)
    sim.step()
    first = snapshot(sim)
    assert fills(first.device) == [4, 4, 0], "the second chunk has its block already"
    assert {b.owners for b in first.device.blocks if b.owners} == {(BlockOwner("a", group.seqs[0].seq_id),)}
    sim.step()
    sim.step()
    assert fills(snapshot(sim).device) == [4, 4, 3]
    assert [b.content is not None for b in snapshot(sim).device.blocks[:3]] == [True, True, False]
    assert snapshot(sim).host.blocks == ()


def test_a_finished_request_leaves_cached_and_free_blocks():
    sim = Simulation(num_blocks=6, block_size=4)
    sim.add("a", list(range(10)), max_tokens=1)
    sim.run()
    pool = snapshot(sim).device
    assert (pool.count("used"), pool.count("cached"), pool.count("free")) == (0, 2, 4)
    cached = [block for block in pool.blocks if block.state == "cached"]
    assert all(len(bytes.fromhex(block.content)) == 16 and block.num_tokens == 4 for block in cached)
    sim.block_space.reset_prefix_cache()
    assert snapshot(sim).device.count("cached") == 0


def test_forks_are_owners_of_the_same_blocks():
    sim = Simulation(num_blocks=16, block_size=4)
    group = sim.add("a", list(range(10)), n=3, max_tokens=4)
    sim.step()
    pool = snapshot(sim).device
    seq_ids = {seq.seq_id for seq in group.seqs}
    assert [{owner.seq_id for owner in block.owners} for block in pool.blocks if block.owners] == [seq_ids] * 3
    assert (pool.num_tokens, pool.num_saved) == (10, 6)
    sim.step()  # the partly filled block is copied, but for its last holder
    pool = snapshot(sim).device
    assert sorted(len(block.owners) for block in pool.blocks if block.owners) == [1, 1, 1, 3, 3]
    assert (pool.num_tokens, pool.num_saved) == (8 + 3 * 3, 4)


def test_a_prefix_hit_shows_both_requests():
    sim = Simulation(num_blocks=16, block_size=4)
    sim.add("a", list(range(10)), max_tokens=4)
    sim.step()
    sim.add("b", list(range(10)), max_tokens=4)
    sim.step()
    shared = [block for block in snapshot(sim).device.blocks if len(block.owners) == 2]
    assert [block.request_ids for block in shared] == [("a", "b")] * 2


def test_what_is_swapped_out_stands_in_the_host_pool():
    sim = Simulation(
        num_blocks=6, num_host_blocks=6, block_size=4, max_model_len=24, watermark=0.0,
        preemption=PreemptionPolicy("swap"), enable_prefix_caching=False,
    )  # fmt: skip
    sim.add("first", [0] * 8, max_tokens=12)
    sim.add("second", [1] * 8, max_tokens=12)
    while not sim.scheduler.swapped:
        sim.step()
    found = snapshot(sim)
    assert {b.request_ids for b in found.host.blocks if b.owners} == {("second",)}
    assert {b.request_ids for b in found.device.blocks if b.owners} == {("first",)}
    [second] = sim.scheduler.swapped
    assert found.host.num_tokens == second.seqs[0].num_computed_tokens > 8


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_snapshots_agree_with_the_pools_under_any_load(enable_prefix_caching):
    rng = random.Random(1)
    sim = Simulation(
        num_blocks=20, num_host_blocks=12, block_size=4, max_num_batched_tokens=16, max_model_len=40,
        preemption=PreemptionPolicy("swap"), enable_prefix_caching=enable_prefix_caching,
    )  # fmt: skip
    num_shared = num_host = 0
    for round_ in range(2000):
        if rng.random() < 0.3 and len(sim.scheduler.waiting) < 8:
            prompt = [rng.randrange(2) for _ in range(rng.choice([3, 8, 30]))]
            options = rng.choice([{}, {"n": 3}, {"beam_width": 3}])
            try:
                sim.add(str(round_), prompt, max_tokens=rng.choice([1, 9]), **options)
            except InvalidRequestError:
                continue
        sim.step()
        found = snapshot(sim)
        space = sim.block_space
        assert found.device.count("used") == space.num_used_blocks
        assert found.host.count("used") == space.num_used_host_blocks
        for pool in (found.device, found.host):
            assert [block.block_id for block in pool.blocks] == list(range(len(pool.blocks)))
            assert all(0 <= block.num_tokens <= 4 for block in pool.blocks)
            contents = [block.content for block in pool.blocks if block.content is not None]
            assert len(set(contents)) == len(contents), "a content is found in one place only"
        for group in [*sim.scheduler.running, *sim.scheduler.swapped]:
            for seq in group.unfinished:
                pool = found.host if group in sim.scheduler.swapped else found.device
                own = [b for b in pool.blocks if seq.seq_id in {owner.seq_id for owner in b.owners}]
                assert sum(block.num_tokens for block in own) >= seq.num_computed_tokens
        num_shared += found.device.num_saved
        num_host += found.host.count("used")
    assert num_shared and num_host
