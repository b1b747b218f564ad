"""Decoding beside a process that never waits, held on one core: the share of the idle speed that is left.

    python bench/beside.py --model DIR
    python bench/beside.py --model DIR --streams 1 --rounds 5

First what is possible: as many processes as cores, each held on a core of its own, which count and never wait for each
other. A fair scheduler takes half of one core from them: 0.75 on two cores. Then tokens per second of decodes, idle and
beside it in turn, several rounds.
"""

import argparse
import contextlib
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="model folder, hub id or 'demo'")
    parser.add_argument("--streams", type=int, action="append", help="may be given several times (default: 1, 8)")
    parser.add_argument("--steps", type=int, default=64, help="of each figure (default: 64)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="to count in (default: 3)")
    args = parser.parse_args()

    from lullm import LLM, SamplingParams

    cores = sorted(os.sched_getaffinity(0))
    idle = count_on(cores, args.seconds)
    with busy_process(cores[0]):
        beside = count_on(cores, args.seconds)
    print(f"counting on {len(cores)} cores: {beside / idle:.2f} of the idle speed", flush=True)
    llm = LLM(args.model, enable_prefix_caching=False)
    rng = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=args.steps, ignore_eos=True)
    for num_streams in args.streams or (1, 8):
        prompts = [{"prompt_token_ids": [rng.randrange(1000) for _ in range(32)]} for _ in range(num_streams)]

        def tokens_per_s(prompts: list = prompts) -> float:
            started = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            return len(prompts) * args.steps / (time.perf_counter() - started)

        tokens_per_s()
        for _ in range(args.rounds):
            idle = tokens_per_s()
            with busy_process(cores[0]):
                beside = tokens_per_s()
            print(f"{num_streams:3} streams: {idle:6.1f} -> {beside:6.1f} tok/s, {beside / idle:.2f}", flush=True)


@contextlib.contextmanager
def busy_process(core: int) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    is_busy = context.Event()
    process = context.Process(target=never_wait, args=(core, is_busy), daemon=True)
    process.start()
    try:
        is_busy.wait()
        yield
    finally:
        process.terminate()
        process.join()


def never_wait(core: int, is_busy: Event) -> None:
    os.sched_setaffinity(0, {core})
    is_busy.set()
    while True:
        pass


def count_on(cores: list[int], seconds: float) -> int:
    """How far one process on each core counts, together."""
    context = multiprocessing.get_context("spawn")
    counts: Queue[int] = context.Queue()
    together = context.Barrier(len(cores))
    processes = [context.Process(target=count, args=(core, together, seconds, counts)) for core in cores]
    for process in processes:
        process.start()
    total = sum(counts.get() for _ in processes)
    for process in processes:
        process.join()
    return total


def count(core: int, together: Barrier, seconds: float, counts: "Queue[int]") -> None:
    os.sched_setaffinity(0, {core})
    together.wait()
    number, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
    counts.put(number)


if __name__ == "__main__":
    main()
