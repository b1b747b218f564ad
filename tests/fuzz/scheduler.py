"""Scheduler and KV blocks without a model: random pools, policies and windows; every law checked at each step."""

import random

from kit.sched.simulation import Simulation
from kit.sched.workload import Workload

from lullm.sched.preemption import PreemptionPolicy, Speeds

from .target import Target


class SchedulerTarget(Target):
    """A round is a scheduler of its own that lives for some hundred steps."""

    def round(self, rng: random.Random) -> None:
        mode = rng.choice(["recompute", "swap", "auto"])
        windows = rng.choice([(None,), (None,), (3,), (8,), (13,), (None, 6), (3, None, 13), (4, 9)])
        chunked = rng.random() < 0.8
        ahead = rng.choice([{}, {}, {"max_in_flight": 2}, {"max_in_flight": 3, "most_drafts": 4}, {"draft_model": 3}])
        if windows[0] is not None:  # a draft model uses the tables of a group that keeps all tokens
            ahead.pop("draft_model", None)
        sim = Simulation(
            num_blocks=rng.randrange(6, 50) * len(windows),
            num_host_blocks=0 if mode == "recompute" else rng.choice([4, 8, 64]),
            block_size=rng.choice([1, 2, 4, 8]),
            max_num_seqs=8,
            max_num_batched_tokens=rng.choice([8, 16, 32]) if chunked else 48,
            max_model_len=40,
            enable_prefix_caching=rng.random() < 0.6,
            policy=rng.choice(["fcfs", "priority"]),
            watermark=rng.choice([0.0, 0.01, 0.2]),
            preemption=PreemptionPolicy(mode, block_bytes=100, speeds=Speeds(600.0, 10.0)),
            windows=windows,
            enable_chunked_prefill=chunked,
            delay_factor=0.0 if chunked else rng.choice([0.0, 0.5]),
            **ahead,
        )
        workload = Workload(sim, rng)
        workload.run(300)
        self.counts["requests"] += len(workload.accepted)
        self.counts["refused"] += workload.num_refused
        self.counts["aborted"] += workload.num_aborted
        self.counts["preempted"] += sim.preempted.total()
