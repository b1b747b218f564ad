"""How many neighbouring blocks a swap moves: whether a copy engine, which takes one range a call, could do it.

    python bench/swap_runs.py

The real scheduler and block manager without a model, in a pool of 64,000 tokens with always more requests than it
holds; lengths are those of ShareGPT. A run: consecutive blocks in both pools. Steps are counted, not seconds.
"""

import argparse
from collections import Counter
from collections.abc import Iterable

from null_model import NullModel, sample_lengths

from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.plan_builder import SchedulerLimits
from lullm.sched.preemption import PreemptionPolicy
from lullm.sched.scheduler import Scheduler
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import BlockPair

NUM_BLOCKS, BLOCK_SIZE = 4000, 16
LONG = (2, 8, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-requests", type=int, default=2000)
    args = parser.parse_args()
    print("| prefix cache | blocks out | mean run | " + " | ".join(f"in runs of {num} or more" for num in LONG) + " |")
    print("|---|--:|--:|" + "--:|" * len(LONG))
    for has_prefixes in (True, False):
        runs = swapped_runs(args.num_requests, has_prefixes)
        num_blocks = sum(size * num for size, num in runs.items())
        shares = [sum(size * num for size, num in runs.items() if size >= least) / num_blocks for least in LONG]
        print(
            f"| {'on' if has_prefixes else 'off'} | {num_blocks} | {num_blocks / runs.total():.2f} | "
            + " | ".join(f"{share:.1%}" for share in shares)
            + " |"
        )


def swapped_runs(num_requests: int, has_prefixes: bool) -> Counter[int]:
    """How often a run of each length goes out."""
    space = BlockSpaceManager(NUM_BLOCKS, BLOCK_SIZE, 0.01, has_prefixes, num_host_blocks=NUM_BLOCKS)
    scheduler = Scheduler(SchedulerLimits(256, 2048, 2048), space, preemption=PreemptionPolicy("swap"))
    model, runs = NullModel(), Counter[int]()
    for number, lengths in enumerate(sample_lengths("sharegpt", num_requests)):
        params = SamplingParams(max_tokens=lengths.output_len, ignore_eos=True)
        prompt = [number, *range(lengths.prompt_len - 1)]  # no two share a prefix
        scheduler.add(GenerateRequest(str(number), None, prompt, params, seed=0, arrival_time=0.0))
    while scheduler.has_unfinished:
        plan = scheduler.plan()
        runs.update(run_lens(plan.blocks_to_swap_out))
        scheduler.apply(plan, model.execute(plan))
    return runs


def run_lens(pairs: Iterable[BlockPair]) -> list[int]:
    """Of (device block, host block): how many follow each other in both pools."""
    lens: list[int] = []
    last = None
    for source, target in sorted(pairs):
        if last == (source - 1, target - 1):
            lens[-1] += 1
        else:
            lens.append(1)
        last = source, target
    return lens


if __name__ == "__main__":
    main()
