"""The live picture of the pools says what the full snapshot says, in fewer words."""

import random

import pytest
from kit.sched.simulation import Simulation

from lullm.errors import InvalidRequestError
from lullm.kv.snapshot import PoolSnapshot
from lullm.sched.monitor import take_occupancy
from lullm.sched.preemption import PreemptionPolicy
from lullm.types.monitor.occupancy import CACHED_CELL, FIRST_OWNER_CELL, MAX_OWNERS, SHARED_CELL


def expected_cells(pool: PoolSnapshot, names: list[str]) -> list[set[int]]:
    """By block: the numbers that its cell may have, since the first of several owners is the first in the queues."""
    found = []
    for block in pool.blocks:
        shared = SHARED_CELL if len(block.owners) > 1 else 0
        owners = {FIRST_OWNER_CELL + names.index(name) + shared for name in block.request_ids}
        found.append(owners or {CACHED_CELL if block.state == "cached" else 0})
    return found


@pytest.mark.parametrize("windows", [(None,), (8, None)], ids=["full", "window"])
def test_it_agrees_with_the_snapshot_under_any_load(windows):
    rng = random.Random(2)
    sim = Simulation(
        num_blocks=24, num_host_blocks=12, block_size=4, max_num_batched_tokens=16, max_model_len=40,
        preemption=PreemptionPolicy("swap"), windows=windows,
    )  # fmt: skip
    seen = set()
    for number in range(600):
        if rng.random() < 0.3 and len(sim.scheduler.waiting) < 8:
            prompt = [rng.randrange(2) for _ in range(rng.choice([3, 8, 30]))]
            try:
                sim.add(str(number), prompt, max_tokens=rng.choice([1, 9]), **rng.choice([{}, {"n": 3}]))
            except InvalidRequestError:
                continue
        sim.step()
        scheduler = sim.scheduler
        groups = [*scheduler.running, *scheduler.swapped]
        snapshot, found = sim.block_space.snapshot(groups), take_occupancy(scheduler, 1000)
        names = [group.request_id for group in groups]
        for pool, full in ((found.device, snapshot.device), (found.host, snapshot.host)):
            assert (pool.num_blocks, pool.blocks_per_cell) == (len(full.blocks), 1)
            allowed = expected_cells(full, names)
            assert all(cell in some for cell, some in zip(pool.cells, allowed, strict=True))
            seen |= set(pool.cells)
        assert [request.request_id for request in found.requests[: len(names)]] == names
        assert len(found.requests) == len(names) + len(scheduler.waiting)
        held = [sum(name in block.request_ids for pool in (snapshot.device, snapshot.host) for block in pool.blocks)
                for name in names]  # fmt: skip
        assert [request.num_blocks for request in found.requests[: len(names)]] == held
        assert found.resident_bytes > 0 and found.seconds > 0
    assert {0, CACHED_CELL, FIRST_OWNER_CELL} < seen and any(cell > SHARED_CELL for cell in seen)


def test_large_pools_are_drawn_in_fewer_cells():
    sim = Simulation(num_blocks=103, block_size=4)
    sim.add("a", list(range(10)), max_tokens=4)
    sim.step()
    fine, coarse = take_occupancy(sim.scheduler, 103).device, take_occupancy(sim.scheduler, 10).device
    assert (coarse.num_blocks, coarse.blocks_per_cell, len(coarse.cells)) == (103, 11, 10)
    assert list(coarse.cells) == [max(fine.cells[start : start + 11]) for start in range(0, 103, 11)]


def test_the_queues_in_order_and_what_they_count():
    sim = Simulation(num_blocks=64, block_size=4, max_num_seqs=3)
    sim.add("a", list(range(10)), n=3, max_tokens=4)
    sim.add("b", list(range(5)), max_tokens=4)
    for _ in range(2):
        sim.step()
    first, second = take_occupancy(sim.scheduler, 64).requests
    assert (first.request_id, first.queue, first.prompt_len, first.output_len) == ("a", "running", 10, 6)
    assert first.num_blocks == 5, "two full ones of the prompt for all, and one each"
    assert (second.request_id, second.queue, second.num_blocks, second.output_len) == ("b", "waiting", 0, 0)


def test_requests_beyond_the_numbers_share_the_last_one():
    sim = Simulation(num_blocks=1000, block_size=4, max_num_seqs=200, max_num_batched_tokens=1000)
    for number in range(150):
        sim.add(str(number), [number] * 3, max_tokens=4)
    sim.step()
    found = take_occupancy(sim.scheduler, 1000)
    assert len(found.requests) == MAX_OWNERS and found.requests[-1].request_id == str(MAX_OWNERS - 1)
    assert max(found.device.cells) == FIRST_OWNER_CELL + MAX_OWNERS - 1 < SHARED_CELL
    assert list(found.device.cells).count(FIRST_OWNER_CELL + MAX_OWNERS - 1) == 150 - MAX_OWNERS + 1
