"""The bound that `scheduler.py` states: nobody starves, whatever is preempted and however."""

import random

import pytest
from kit.sched.simulation import Simulation

from lullm.sched.preemption import PreemptionPolicy, Speeds
from lullm.types.sequence import SequenceGroup


def num_tokens(group: SequenceGroup) -> int:
    """Tokens of an ended request, each sequence counted with its prompt."""
    if group.request.params.beam_width:
        longest = max((len(hypothesis.token_ids) for hypothesis in group.hypotheses), default=0)
        return group.request.params.beam_width * (len(group.request.prompt_token_ids) + longest)
    return sum(len(seq) for seq in group.seqs)


def preemption(mode: str) -> PreemptionPolicy:
    return PreemptionPolicy(mode, block_bytes=100, speeds=Speeds(600.0, 10.0))


@pytest.mark.pairs
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("mode", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("seed, max_in_flight", [*((seed, 1) for seed in range(6)), (6, 2)])
def test_nobody_waits_longer_than_the_tokens_before_him(mode, enable_prefix_caching, seed, max_in_flight):
    """Planned ahead, too: a step behind an early end is paid for by the last token, which is never computed."""
    rng = random.Random(seed)
    sim = Simulation(
        num_blocks=rng.choice([10, 12, 16]), num_host_blocks=rng.choice([4, 40]), block_size=4, max_num_seqs=6,
        max_num_batched_tokens=rng.choice([6, 12]), max_model_len=40, enable_prefix_caching=enable_prefix_caching,
        preemption=preemption(mode), max_in_flight=max_in_flight,
    )  # fmt: skip
    arrived: dict[str, int] = {}
    ended: dict[str, int] = {}
    groups: dict[str, SequenceGroup] = {}
    step = 0
    while step < 1500 or sim.scheduler.has_unfinished:
        if step < 1500 and rng.random() < 0.25 and len(sim.scheduler.unfinished_ids) < 12:
            prompt = [rng.randrange(2) for _ in range(rng.choice([1, 5, 12, 30]))]
            options = rng.choice([{}, {}, {"n": 3}, {"beam_width": 3}])
            max_tokens = rng.choice([1, 4, 20])
            end = rng.choice([None, 1]) if max_in_flight > 1 else None
            group = sim.add(str(step), prompt, end=end, max_tokens=max_tokens, **options)
            # What was planned before it came is still to run.
            groups[str(step)], arrived[str(step)] = group, step + max_in_flight - 1
        unfinished = sim.scheduler.unfinished_ids
        first = groups[unfinished[0]] if unfinished else None
        preemptions = sim.preempted[first.request_id] if first else 0
        seq_ids = {s.seq_id for s in first.seqs} if first else set()
        sim.step()
        step += 1
        if first:
            # What the bound follows from: who stands first moves in every step, and is not preempted.
            spans = {span.seq_id for span in sim.plans[-1].spans}
            assert sim.preempted[first.request_id] == preemptions
            assert first.is_finished or spans & seq_ids or max_in_flight > 1
        for request_id in set(unfinished) - set(sim.scheduler.unfinished_ids):
            ended[request_id] = step

    assert sim.scheduler.preemption.num_preemptions > 10 and set(ended) == set(groups)
    assert (sim.num_pending > 1000) == (max_in_flight > 1)
    for request_id, group in groups.items():
        earlier = [
            groups[other]
            for other in groups
            if arrived[other] < arrived[request_id] and ended[other] > arrived[request_id]
        ]
        bound = sum(num_tokens(other) for other in [*earlier, group])
        assert ended[request_id] - arrived[request_id] <= bound


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_bound_is_reached_but_for_the_last_token(mode):
    # One token per step, one request at a time: a request's last token is drawn, and not computed.
    sim = Simulation(max_num_seqs=1, max_num_batched_tokens=1, preemption=preemption(mode), num_host_blocks=8)
    groups = [sim.add(str(i), [i] * 6, max_tokens=3) for i in range(4)]
    sim.run()
    assert len(sim.plans) == sum(num_tokens(group) - 1 for group in groups) == 4 * 8


def test_prompts_first_lets_a_stream_of_prompts_hold_a_decode_back():
    """The bound is the chunked policy's: prefill-first trades it for throughput, as its description says."""
    sim = Simulation(max_num_batched_tokens=64, enable_chunked_prefill=False)
    sim.add("first", [0] * 4, max_tokens=3)
    sim.step()
    for number in range(50):
        sim.add(f"stream-{number}", [1] * 4, max_tokens=1)
        sim.step()
    assert "first" in sim.scheduler.unfinished_ids
    sim.run(max_steps=3)
