"""Long seeded random workloads: whatever comes, blocks are conserved, budgets kept, and every request ends once."""

import random
from collections import Counter

import pytest
from simulation import Simulation

from lullm.errors import InvalidRequestError


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize(("num_blocks", "max_num_batched_tokens"), [(12, 8), (48, 32)])
def test_ten_thousand_rounds(policy, enable_prefix_caching, num_blocks, max_num_batched_tokens):
    rng = random.Random(num_blocks)
    sim = Simulation(
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=40,
        enable_prefix_caching=enable_prefix_caching,
        policy=policy,
    )
    ends: Counter[int] = Counter()
    refused = aborted = 0
    accepted = []
    live: list[str] = []

    def take(updates):
        for update in updates:
            if update.seq.is_finished:
                ends[update.seq.seq_id] += 1

    for round_ in range(10_000):
        if rng.random() < 0.25 and len(live) < 30:
            # A two-token vocabulary makes shared prefixes, cache hits and equal blocks common.
            prompt = [rng.randrange(2) for _ in range(rng.choice([1, 3, 4, 8, 15, 30, 60]))]
            try:
                group = sim.add(
                    str(round_),
                    prompt,
                    priority=rng.randrange(3),
                    end=1 if rng.random() < 0.2 else None,
                    n=rng.choice([1, 1, 1, 2, 4]),
                    max_tokens=rng.choice([1, 2, 9, 30]),
                    prompt_logprobs=rng.choice([None, None, 0]),
                )
            except InvalidRequestError:
                refused += 1
            else:
                accepted.append(group)
                live.append(str(round_))
        if live and rng.random() < 0.03:
            group = sim.scheduler.abort(live.pop(rng.randrange(len(live))))
            if group is not None:
                aborted += 1
                for seq in group.seqs:
                    if seq.status.finish_reason == "abort":
                        ends[seq.seq_id] += 1
                sim.block_space.check_conservation()
        if rng.random() < 0.001:
            sim.block_space.reset_prefix_cache()
        take(sim.step())
        unfinished = set(sim.scheduler.unfinished_ids)
        live = [request_id for request_id in live if request_id in unfinished]
    while sim.scheduler.has_unfinished:
        take(sim.step())

    assert bool(refused) == (num_blocks == 12) and aborted and len(accepted) > 500
    assert sim.block_space.num_used_blocks == 0
    assert sim.scheduler.stats.preemptions > 0
    assert sim.scheduler._by_seq == {} and len(sim.scheduler.waiting) == 0
    for group in accepted:
        assert group.is_finished
        for seq in group.seqs:
            assert ends[seq.seq_id] == 1, "every sequence ends exactly once"
        if group.request.params.prompt_logprobs is not None and group.seqs[0].status.finish_reason in (
            "stop",
            "length",
        ):
            targets = [row[0][0] for row in group.prompt_logprobs]
            assert targets == group.request.prompt_token_ids[1:] or group.seqs[0].output_len == 0
