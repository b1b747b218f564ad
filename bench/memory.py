"""The memory tables of the PagedAttention paper (arXiv 2309.06180), measured on this scheduler with a null model.

    python bench/memory.py waste                    slots that hold tokens, batch size; against contiguous memory
    python bench/memory.py sharing                  blocks saved by parallel sampling and beam search
    python bench/memory.py picture --png FILE       the block map of the saturated pool over time

A pool of 15,700 slots, model length 2048, lognormal lengths with the means of ShareGPT and Alpaca. The figures do not
depend on the machine; `--num-requests` trades time for noise.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import contiguous
import null_model
from null_model import NUM_SLOTS, NullModel, sample_lengths

from lullm.draw.block_map import BlockMap

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTHS = (2, 4, 6)
THETAS = (0.05, 0.25, 1.0, 4.0)
PAPER_BATCH = {"max": 7.0, "pow2": 9.8, "oracle": 13.6, "paged": 30.4}  # ShareGPT, figure 13a


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("waste", "sharing", "picture"))
    parser.add_argument("--dataset", choices=null_model.MEAN_LENGTHS, action="append", help="default: both")
    parser.add_argument(
        "--num-requests", type=int, help="default: 3000 for waste, 300 (ShareGPT) and 1500 (Alpaca) for sharing"
    )
    parser.add_argument("--block-size", type=int, action="append", help="of waste (default: 1, 2, 4 ... 256)")
    parser.add_argument("--width", type=int, action="append", help="of sharing (default: 2, 4, 6)")
    parser.add_argument("--theta", type=float, action="append", help="of sharing by beams (default: 0.05 to 4)")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths")
    parser.add_argument("--png", type=Path, help="where the picture goes")
    args = parser.parse_args()
    datasets = args.dataset or list(null_model.MEAN_LENGTHS)
    started = time.perf_counter()
    if args.table == "picture":
        if args.png is None:
            parser.error("picture needs --png FILE")
        picture(datasets[0], args.num_requests or 400, args.seed, args.png)
    else:
        for dataset in datasets:
            if args.table == "waste":
                waste(dataset, args.num_requests or 3000, args.seed, args.block_size or BLOCK_SIZES)
            else:
                num_requests = args.num_requests or {"sharegpt": 300, "alpaca": 1500}[dataset]
                sharing(dataset, num_requests, args.seed, args.width or WIDTHS, args.theta or THETAS)
    print(f"\n{time.perf_counter() - started:.0f} s")


def waste(dataset: str, num_requests: int, seed: int, block_sizes: Sequence[int]) -> None:
    """Share of the pool's slots that hold tokens, and how many requests that is."""
    requests = sample_lengths(dataset, num_requests, seed)
    print(f"\n{_describe(dataset, requests)}; pool of {NUM_SLOTS} slots")
    print("\n| memory | slots with tokens, of the pool | of what is taken | mean batch | paper |")
    print("|---|--:|--:|--:|--:|")
    for policy, words in {"max": "maximum", "pow2": "power of two", "oracle": "oracle"}.items():
        for placement in (contiguous.BuddyPlacement(), contiguous.FirstFitPlacement()):
            usage = contiguous.saturate(requests, policy, placement)
            is_paper = dataset == "sharegpt" and isinstance(placement, contiguous.BuddyPlacement)
            name = "buddy" if isinstance(placement, contiguous.BuddyPlacement) else "first fit"
            _print_usage(f"contiguous, {words}, {name}", usage, PAPER_BATCH[policy] if is_paper else None)
    for block_size in block_sizes:
        usage = null_model.saturate(requests, block_size)
        is_paper = dataset == "sharegpt" and block_size == 16
        name = f"paged, block {block_size} ({usage.preemptions} preemptions)"
        _print_usage(name, usage, PAPER_BATCH["paged"] if is_paper else None)


def _print_usage(name: str, usage: null_model.Usage, paper: float | None) -> None:
    print(
        f"| {name} | {usage.token_share:.1%} | {usage.fill:.1%} | {usage.batch_size:.1f} "
        f"| {'' if paper is None else paper} |",
        flush=True,
    )


def sharing(dataset: str, num_requests: int, seed: int, widths: Sequence[int], thetas: Sequence[float]) -> None:
    """Blocks that sharing saves: saved / what the sequences would hold without sharing, mean over all steps."""
    requests = sample_lengths(dataset, num_requests, seed)
    print(f"\n{_describe(dataset, requests)}; block 16")
    print("\n| blocks saved | " + " | ".join(str(width) for width in widths) + " |")
    print("|---|" + "--:|" * len(widths))
    saved = [null_model.saturate(requests, 16, n=n).saved for n in widths]
    _print_shares("parallel sampling, n", saved)
    for theta in thetas:
        saved = [
            null_model.saturate(requests, 16, model=NullModel(theta, seed), beam_width=width).saved for width in widths
        ]
        _print_shares(f"beam search, width; best token has {1 / (1 + theta):.0%} or more on average", saved)
    _print_shares("the most there can be (all but one)", [1 - 1 / width for width in widths])


def _print_shares(name: str, shares: list[float]) -> None:
    print(f"| {name} | " + " | ".join(f"{share:.1%}" for share in shares) + " |", flush=True)


def _describe(dataset: str, requests: list[null_model.Lengths]) -> str:
    prompt_len = sum(request.prompt_len for request in requests) / len(requests)
    output_len = sum(request.output_len for request in requests) / len(requests)
    return f"{dataset}: {len(requests)} requests, mean {prompt_len:.1f} in, {output_len:.1f} out after clipping"


def picture(dataset: str, num_requests: int, seed: int, path: Path) -> None:
    """The saturated pool, one row for every 4th step."""
    block_map = BlockMap()

    def watch(step: int, scheduler) -> None:
        if step % 4 == 0 and step <= 4 * 500:
            block_map.add(step, scheduler.block_space.snapshot(scheduler.running))

    null_model.saturate(sample_lengths(dataset, num_requests, seed), 16, watch=watch)
    block_map.write_png(path, f"{dataset}: a saturated pool of {NUM_SLOTS} slots")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
