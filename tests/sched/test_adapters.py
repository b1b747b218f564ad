"""Groups with adapters: places, groups that wait for one, and that none waits forever."""

import random

import pytest
from kit.sched.groups import make_group

from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.adapter.queue import AdapterQueue
from lullm.sched.plan_builder import SchedulerLimits, SchedulingRules
from lullm.sched.queue import Order
from lullm.sched.scheduler import Scheduler
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import NO_PLACE, DrawnToken, StepResult


class House:
    """A queue whose adapters can all be read, over groups that arrive and leave."""

    def __init__(self, num_places):
        self.order = Order("fcfs")
        self.queue = AdapterQueue(self.order, num_places)
        self.num = 0

    def arrive(self, adapter):
        self.num += 1
        group = make_group([1, 2, 3], first_id=self.num)
        group.request = GenerateRequest(str(self.num), None, [1], SamplingParams(), 0, 0.0, adapter=adapter)
        self.order.register(group)
        self.queue.push(group)
        return group

    def assign(self):
        """As a step does: what is wanted is read first."""
        self.queue.readable.update(self.queue.wanted())
        assert not self.queue.wanted()
        return self.queue.assign()

    def admitted(self):
        found = []
        while (group := self.queue.peek()) is not None:
            found.append(self.queue.pop())
            assert found[-1] is group
        return found


def test_groups_without_an_adapter_are_never_parked():
    house = House(0)
    group = house.arrive(0)
    assert house.admitted() == [group] and house.assign() == [] and group.adapter_place == NO_PLACE


def test_one_place_for_each_adapter():
    house = House(2)
    first, plain, second, third, again = (house.arrive(adapter) for adapter in (7, 0, 8, 9, 7))
    assert house.queue.num_parked == 4 and len(house.queue) == 5 and third in house.queue
    assert house.assign() == [(0, 7), (1, 8)]
    # What follows the third, which waits, would hold its place up.
    assert house.admitted() == [first, plain, second] + ([again] if again.adapter_place == 0 else [])
    assert [group.adapter_place for group in (first, second, third)] == [0, 1, NO_PLACE]
    assert list(house.queue) and house.queue.in_use() == {7, 8}
    house.queue.leave(second)
    moves = house.assign()
    assert moves and moves[0][1] == 9 and third.adapter_place == 1


def test_those_who_come_later_do_not_hold_a_place_up():
    house = House(1)
    first = house.arrive(7)
    assert house.assign() == [(0, 7)] and house.admitted() == [first]
    other = house.arrive(8)
    assert house.assign() == []
    late = house.arrive(7)  # its adapter has a place, which drains
    assert house.assign() == [] and house.admitted() == [] and late.adapter_place == NO_PLACE
    house.queue.leave(first)
    assert house.assign() == [(0, 8)] and house.admitted() == [other]
    house.queue.leave(other)
    assert house.assign() == [(0, 7)] and house.admitted() == [late]
    assert house.queue.num_moves == 3 and len(house.queue) == 0


def test_groups_that_wait_already_go_back():
    house = House(1)
    first, second = house.arrive(7), house.arrive(7)
    house.assign()
    assert house.queue.pop() is first
    early = house.arrive(8)
    late = house.arrive(7)
    assert late.adapter_place == 0, "nothing drains yet"
    house.assign()
    assert late.adapter_place == NO_PLACE and second.adapter_place == 0, "the second came before the one that waits"
    house.queue.remove(second)
    house.queue.leave(second)
    house.queue.leave(first)
    assert house.assign() == [(0, 8)] and house.admitted() == [early]


def test_the_end_of_a_group_that_waits_for_a_place():
    house = House(1)
    first, parked = house.arrive(7), house.arrive(8)
    house.assign()
    house.queue.remove(parked)
    house.queue.leave(parked)
    assert parked not in house.queue and len(house.queue) == 1
    again = house.arrive(7)
    assert again.adapter_place == 0 == first.adapter_place, "nobody waits, so nothing drains"


def test_places_that_have_lost_their_contents():
    house = House(2)
    house.arrive(7)
    house.assign()
    house.queue.forget_places()
    house.queue.readable.clear()
    assert house.queue.wanted() == [7]
    assert house.assign() == [(0, 7)] and house.assign() == []


def test_an_adapter_that_nobody_uses_keeps_its_place():
    house = House(2)
    group = house.arrive(7)
    house.assign()
    house.queue.leave(group)
    again = house.arrive(7)
    assert again.adapter_place == 0 and house.assign() == []
    house.queue.leave(again)
    house.arrive(8)
    assert house.assign() == [(1, 8)], "an empty place is taken before one that is only idle"
    house.queue.forget(7)
    house.arrive(9)
    assert house.assign() == [(0, 9)]


def request(number, adapter, rng):
    params = SamplingParams(max_tokens=rng.randint(1, 9), ignore_eos=True)
    prompt = [rng.randrange(50) for _ in range(rng.randint(1, 40))]
    return GenerateRequest(str(number), None, prompt, params, 0, 0.0, adapter=adapter)


@pytest.mark.parametrize("max_loras", [1, 2, 3])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_random_workload(max_loras, in_flight):
    """A step has at most `max_loras` adapters, spans name the place where theirs was put, and all requests end."""
    rng = random.Random(10 * max_loras + in_flight)
    space = BlockSpaceManager(40, 4, num_host_blocks=8)
    limits = SchedulerLimits(max_num_seqs=8, max_num_batched_tokens=32, max_model_len=64)
    scheduler = Scheduler(limits, space, SchedulingRules(max_in_flight=in_flight, max_loras=max_loras))
    adapter_of, places, num_ended, number, flying = {}, {}, 0, 0, []
    for _ in range(1500):
        while number < 120 and rng.random() < 0.3:
            adapter = rng.choice((0, 1, 1, 1, 2, 3, 4, 5))
            group = scheduler.add(request(number, adapter, rng))
            adapter_of[group.seqs[0].seq_id] = adapter
            number += 1
        if number > 3 and rng.random() < 0.02 and (ids := scheduler.unfinished_ids):
            num_ended += scheduler.abort(rng.choice(ids)) is not None
        if rng.random() < 0.02 and not flying:
            scheduler.evict_all()
            scheduler.waiting.forget_places()
            places.clear()
        while scheduler.can_plan:
            scheduler.waiting.readable.update(scheduler.waiting.wanted())
            plan = scheduler.plan()
            if plan.is_empty:
                break
            places.update(plan.adapters_to_place)
            used = set()
            for span in plan.spans:
                adapter = adapter_of[span.seq_id]
                assert (places[span.adapter_place] if adapter else 0) == adapter
                assert adapter or span.adapter_place == NO_PLACE
                used |= {adapter} - {0}
            assert len(used) <= max_loras
            flying.append(plan)
        if flying:
            plan = flying.pop(0)
            tokens = [DrawnToken(draw.seq_id, rng.randrange(50)) for span in plan.spans for draw in span.draws]
            num_ended += sum(update.is_end for update in scheduler.apply(plan, StepResult(tokens)))
        else:
            num_ended += sum(update.is_end for update in scheduler.take_outgrown())
        if number == 120 and not scheduler.has_unfinished:
            break
    assert num_ended == 120 and not scheduler.has_unfinished, scheduler.unfinished_ids
    assert scheduler.waiting.in_use() == set() and len(scheduler.waiting) == 0
    assert scheduler.waiting.num_moves >= 5
    space.check_conservation()


def test_no_adapter_starves():
    """One adapter's requests never stop coming, and another's still runs."""
    rng = random.Random(3)
    scheduler = Scheduler(SchedulerLimits(4, 64, 64), BlockSpaceManager(40, 4), SchedulingRules(max_loras=1))
    number = 0
    for _ in range(60):
        for _ in range(2):
            scheduler.add(request(number, 2 if number == 9 else 1, rng))
            number += 1
        scheduler.waiting.readable.update(scheduler.waiting.wanted())
        plan = scheduler.plan()
        tokens = [DrawnToken(draw.seq_id, 1) for span in plan.spans for draw in span.draws]
        scheduler.apply(plan, StepResult(tokens))
        if number > 9 and "9" not in scheduler.unfinished_ids:
            return
    raise AssertionError("it waits forever")
