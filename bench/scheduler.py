"""What the scheduler itself costs: plan() + apply() with N running sequences that decode, on one core, without a model.

    python bench/scheduler.py
    python bench/scheduler.py --num-seqs 256 --steps 1000

Milliseconds per step (median) for N = 32 .. 1024 sequences of 500 tokens and more; goal: at most 0.8 ms for 256,
and 3 for 1024. Then what it costs to send a step to another process: plan and result of 256 sequences of 2,000
tokens (125 blocks each) to bytes and back; goal: at most 0.4 ms for the plan.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.plan_builder import SchedulerLimits
from lullm.sched.scheduler import Scheduler
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import DrawnToken, StepResult
from lullm.types.step_codec import decode_plan, decode_result, encode_plan, encode_result

PROMPT_LEN = 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--num-seqs", type=int, action="append", help="may be given several times (default: 32 .. 1024)"
    )
    parser.add_argument("--steps", type=int, default=200, help="of each figure (default: 200)")
    args = parser.parse_args()
    for num_seqs in args.num_seqs or (32, 64, 128, 256, 512, 1024):
        seconds = measure(num_seqs, args.steps)
        print(f"{num_seqs:5} sequences: {seconds * 1e3:6.2f} ms a step, {seconds / num_seqs * 1e6:5.2f} us a sequence")
    for name, num_bytes, encode_s, decode_s in measure_codec(256, 2000, args.steps):
        print(
            f"a {name} of 256 decodes: {num_bytes} bytes, {encode_s * 1e3:.3f} + {decode_s * 1e3:.3f} ms there and back"
        )


def open_scheduler(num_seqs: int, prompt_len: int) -> Scheduler:
    """With so many different requests, none of them computed."""
    block_space = BlockSpaceManager(num_seqs * (prompt_len // 16 + 33), 16)
    limits = SchedulerLimits(num_seqs, num_seqs * prompt_len, 4096)
    scheduler = Scheduler(limits, block_space, clock=time.monotonic)
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    for i in range(num_seqs):
        prompt = [i * 7 + j for j in range(prompt_len)]
        scheduler.add(GenerateRequest(str(i), None, prompt, params, 0, 0.0))
    return scheduler


def measure(num_seqs: int, num_steps: int) -> float:
    scheduler = open_scheduler(num_seqs, PROMPT_LEN)
    seconds = []
    for step in range(num_steps + 1):
        started = time.perf_counter()
        plan = scheduler.plan()
        planned = time.perf_counter()
        result = StepResult([DrawnToken(draw.seq_id, 5) for span in plan.spans for draw in span.draws])
        drawn = time.perf_counter()
        scheduler.apply(plan, result)
        if step:  # the first step is the prefill of everything
            seconds.append(planned - started + time.perf_counter() - drawn)
    return statistics.median(seconds)


def measure_codec(num_seqs: int, context_len: int, repeat: int) -> list[tuple[str, int, float, float]]:
    """(what, bytes, seconds to encode, seconds to decode) of a step that decodes, medians."""
    scheduler = open_scheduler(num_seqs, context_len)
    for _ in range(2):  # the prefill of everything, then a step of decodes
        plan = scheduler.plan()
        result = StepResult([DrawnToken(draw.seq_id, 5) for span in plan.spans for draw in span.draws])
        scheduler.apply(plan, result)
    plan_bytes, result_bytes = encode_plan(plan), encode_result(result)
    return [
        (
            "plan",
            len(plan_bytes),
            median_s(lambda: encode_plan(plan), repeat),
            median_s(lambda: decode_plan(plan_bytes), repeat),
        ),
        (
            "result",
            len(result_bytes),
            median_s(lambda: encode_result(result), repeat),
            median_s(lambda: decode_result(result_bytes), repeat),
        ),
    ]


def median_s(call: Callable[[], object], repeat: int) -> float:
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
