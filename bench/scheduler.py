"""What the scheduler itself costs: plan() + apply() with N running sequences that decode, on one core, without a model.

    python bench/scheduler.py

Milliseconds per step (median) for N = 32 .. 1024 sequences of 500 tokens and more; goal: at most 1.5 ms for 256, and
growth in proportion.
"""

import statistics
import time

from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.scheduler import Scheduler, SchedulerLimits
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import DrawnToken, StepResult

PROMPT_LEN = 500
STEPS = 200


def main() -> None:
    for num_seqs in (32, 64, 128, 256, 512, 1024):
        seconds = measure(num_seqs)
        print(f"{num_seqs:5} sequences: {seconds * 1e3:6.2f} ms a step, {seconds / num_seqs * 1e6:5.2f} us a sequence")


def measure(num_seqs: int) -> float:
    block_space = BlockSpaceManager(num_seqs * 64, 16)
    limits = SchedulerLimits(num_seqs, num_seqs * PROMPT_LEN, 4096)
    scheduler = Scheduler(limits, block_space, clock=time.monotonic)
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    for i in range(num_seqs):
        prompt = [i * 7 + j for j in range(PROMPT_LEN)]
        scheduler.add(GenerateRequest(str(i), None, prompt, params, 0, 0.0))
    seconds = []
    for step in range(STEPS + 1):
        started = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        result = StepResult([DrawnToken(draw.seq_id, 5) for span in plan.spans for draw in span.draws])
        drawn = time.perf_counter()
        scheduler.apply(plan, result)
        if step:  # the first step is the prefill of everything
            seconds.append(planned - started + time.perf_counter() - drawn)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
