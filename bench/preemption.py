"""What the memory options cost and bring on a real engine: preemption modes, block sizes, shared prefixes.

    python bench/preemption.py modes          swap against recompute for block sizes 1 to 256, and what auto chose
    python bench/preemption.py block-size     throughput in a roomy pool against block size
    python bench/preemption.py prefix         throughput with a shared prefix of 0, 1 and 5 examples

Runs alternate between what is compared, and the tables show medians. With one thread (the default) seconds are of
processor time, copies included, which leaves out the waiting for a core that other work causes, though not the
slowing down of a shared cache; with more threads they are of the clock.
"""

import argparse
import contextlib
import random
import statistics
import time
from collections import Counter

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODES = ("recompute", "swap", "auto")
# Tokens of a prefix with one and with five examples, as in the PagedAttention paper (arXiv 2309.06180, figure 16).
PREFIX_LENS = {"none": 0, "1 example": 80, "5 examples": 341}
# The crowded pool: each request ends in more than one block of 256, all together have twice what the pool holds.
NUM_SLOTS, NUM_REQUESTS, PROMPT_LEN, OUTPUT_LEN = 1024, 8, 32, 240


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("modes", "block-size", "prefix"))
    parser.add_argument("--model", default="demo", help="model folder, hub id or 'demo'")
    parser.add_argument("--block-size", type=int, action="append", help="default: 1, 2, 4 ... 256")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="one is enough for the demo model")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    block_sizes = args.block_size or BLOCK_SIZES
    if args.table == "modes":
        modes(args.model, block_sizes, args.repeat)
    elif args.table == "block-size":
        throughput(args.model, block_sizes, args.repeat)
    else:
        prefix(args.model, args.repeat)


def modes(model: str, block_sizes: list[int], repeat: int) -> None:
    """One pool, half as large as what the requests need at their ends."""
    print(f"{NUM_REQUESTS} requests of {PROMPT_LEN} + {OUTPUT_LEN} tokens in {NUM_SLOTS} slots, {model}; seconds\n")
    print("| block | recompute | swap | auto | auto / better | preemptions (recompute, swap, auto) | auto chose |")
    print("|--:|--:|--:|--:|--:|---|---|")
    for block_size in block_sizes:
        with contextlib.ExitStack() as stack:
            llms = {
                mode: stack.enter_context(
                    build(
                        model,
                        block_size=block_size,
                        num_gpu_blocks_override=NUM_SLOTS // block_size,
                        preemption_mode=mode,
                        swap_space=1.0,
                        enable_prefix_caching=False,
                    )
                )
                for mode in MODES
            }
            seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
            for _ in range(repeat):
                for mode, llm in llms.items():
                    seconds[mode].append(run(llm, prompts(llm, NUM_REQUESTS, PROMPT_LEN), OUTPUT_LEN))
            counts = {mode: llm.llm_engine.stats().preemptions_total for mode, llm in llms.items()}
        median = {mode: statistics.median(values) for mode, values in seconds.items()}
        chosen = Counter({action: num for (action, reason), num in counts["auto"].items() if reason == "cheaper"})
        print(
            f"| {block_size} | " + " | ".join(f"{median[mode]:.2f}" for mode in MODES)
            + f" | {median['auto'] / min(median['recompute'], median['swap']):.2f} | "
            + ", ".join(f"{sum(counts[mode].values()) / repeat:.0f}" for mode in MODES)
            + f" | {', '.join(f'{action} {num}' for action, num in chosen.items()) or 'nothing'} |",
            flush=True,
        )  # fmt: skip


def throughput(model: str, block_sizes: list[int], repeat: int) -> None:
    """Room for all requests: the remaining cost is that of the block table, and of attention over blocks."""
    print(f"{NUM_REQUESTS} requests of {PROMPT_LEN} + {OUTPUT_LEN} tokens, {model}\n")
    print("| block | output tok/s | runs |\n|--:|--:|---|")
    with contextlib.ExitStack() as stack:
        llms = {
            block_size: stack.enter_context(build(model, block_size=block_size, enable_prefix_caching=False))
            for block_size in block_sizes
        }
        speeds: dict[int, list[float]] = {block_size: [] for block_size in block_sizes}
        for _ in range(repeat):
            for block_size, llm in llms.items():
                elapsed = run(llm, prompts(llm, NUM_REQUESTS, PROMPT_LEN), OUTPUT_LEN)
                speeds[block_size].append(NUM_REQUESTS * OUTPUT_LEN / elapsed)
    for block_size, values in speeds.items():
        print(f"| {block_size} | {statistics.median(values):.0f} | {min(values):.0f}-{max(values):.0f} |")


def prefix(model: str, repeat: int, num_requests: int = 32, own_len: int = 32, output_len: int = 32) -> None:
    """All prompts begin with the same examples; without prefix caching each request computes them again."""
    print(f"{num_requests} requests of prefix + {own_len} + {output_len} tokens, {model}; requests/s\n")
    print("| shared prefix | tokens | cache on | cache off | on / off |\n|---|--:|--:|--:|--:|")
    with build(model, enable_prefix_caching=True) as on, build(model, enable_prefix_caching=False) as off:
        for name, prefix_len in PREFIX_LENS.items():
            speeds: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(repeat):
                for is_on, llm in ((True, on), (False, off)):
                    llm.llm_engine.reset_prefix_cache()
                    elapsed = run(llm, prompts(llm, num_requests, own_len, prefix_len), output_len)
                    speeds[is_on].append(num_requests / elapsed)
            fast, slow = statistics.median(speeds[True]), statistics.median(speeds[False])
            print(f"| {name} | {prefix_len} | {fast:.1f} | {slow:.1f} | {fast / slow:.2f} |", flush=True)


def build(model: str, **options):
    """An engine that has run once, so that its threads and buffers are there."""
    import torch

    from lullm import LLM

    llm = LLM(model, max_num_seqs=64, threads=torch.get_num_threads(), **options)
    run(llm, prompts(llm, 2, 16), 4)
    return llm


def prompts(llm, num: int, own_len: int, prefix_len: int = 0) -> list[list[int]]:
    """Random tokens, the first `prefix_len` of each prompt the same."""
    rng = random.Random(0)
    vocab_size = llm.llm_engine.model_config.vocab_size
    shared = [rng.randrange(10, vocab_size) for _ in range(prefix_len)]
    return [shared + [rng.randrange(10, vocab_size) for _ in range(own_len)] for _ in range(num)]


def run(llm, token_ids: list[list[int]], output_len: int) -> float:
    """Seconds from the first request to the last token."""
    import torch

    from lullm import SamplingParams

    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    started = clock()
    outputs = llm.generate(token_ids, params, use_tqdm=False)
    elapsed = clock() - started
    assert all(len(output.outputs[0].token_ids) == output_len for output in outputs)
    return elapsed


if __name__ == "__main__":
    main()
