"""`lullm bench latency`: the time of one batch of prompts, repeated."""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lullm.cli.bench.dataset import random_jobs
from lullm.cli.bench.engine import add_measured_engine, measured_config
from lullm.cli.bench.record import check_at_least, summary, write_record
from lullm.cli.flag.model import add_model_argument
from lullm.errors import ConfigError

if TYPE_CHECKING:
    from lullm.llm.llm import LLM
    from lullm.types.outputs import RequestOutput

PERCENTILES = (10, 25, 50, 75, 90, 99)  # vLLM's


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm bench latency`."""
    parser.usage = "lullm bench latency [MODEL] [FLAGS]"
    parser.description = (
        "Generate for one batch of random prompts again and again, and print how long it takes. The "
        "batches are equal; the prefix cache is off, unless --enable-prefix-caching is given."
    )
    add_model_argument(parser)
    parser.add_argument("--input-len", type=int, default=32, metavar="N", help="tokens a prompt (default: %(default)s)")
    parser.add_argument("--output-len", type=int, default=128, metavar="N", help="tokens (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="prompts (default: %(default)s)")
    parser.add_argument("--n", type=int, default=1, metavar="N", help="completions a prompt (default: %(default)s)")
    parser.add_argument("--use-beam-search", action="store_true", help="search with --n beams instead of drawing")
    parser.add_argument("--num-iters-warmup", type=int, default=3, metavar="N", help="before (default: %(default)s)")
    parser.add_argument("--num-iters", type=int, default=10, metavar="N", help="that count (default: %(default)s)")
    add_measured_engine(parser, run, has_picture=True)


def run(args: argparse.Namespace) -> int:
    """Measure and report. Raises LullmError."""
    check_at_least(args, 1, "input_len", "output_len", "batch_size", "n", "num_iters")
    check_at_least(args, 0, "num_iters_warmup")
    if not hasattr(args, "enable_prefix_caching"):
        args.enable_prefix_caching = False
    config = measured_config(args)
    from lullm.llm.llm import LLM
    from lullm.log import log_to_stderr

    log_to_stderr("WARNING")
    with LLM(**dataclasses.asdict(config)) as llm:
        seconds, first_s = _measure(args, llm, config.seed or 0)
    numbers = _numbers(args, seconds, first_s)
    print(_text(args, numbers))
    write_record(args, numbers)
    if args.png is not None:
        from lullm.draw.distribution import draw_distributions

        title = f"{config.model}: {args.batch_size} x ({args.input_len} + {args.output_len}) tokens, percent below"
        panels = {"whole batch": seconds, "time to first token": first_s}
        shown = {name: [1000 * each for each in values] for name, values in panels.items()}
        draw_distributions(shown, title, "ms").write(args.png)
    return 0


def _measure(args: argparse.Namespace, llm: "LLM", seed: int) -> tuple[list[float], list[float]]:
    """Seconds of each batch, and from the batch's start to each request's first token."""
    from lullm.types.sampling_params import SamplingParams

    vocab_size = llm.llm_engine.model_config.vocab_size
    jobs = random_jobs(args.batch_size, vocab_size, args.input_len, args.output_len, seed)
    width = args.n if args.use_beam_search else None
    params = SamplingParams(n=args.n, beam_width=width, max_tokens=args.output_len, ignore_eos=True)
    seconds: list[float] = []
    first_s: list[float] = []
    for number in range(args.num_iters_warmup + args.num_iters):
        started = time.monotonic()
        outputs = llm.generate([job.prompt for job in jobs], params, use_tqdm=False)
        ended = time.monotonic()
        _check_complete(args, outputs)
        if number < args.num_iters_warmup:
            continue
        seconds.append(ended - started)
        times = [output.metrics for output in outputs if output.metrics is not None]
        first_s += [each.first_token_time - started for each in times if each.first_token_time is not None]
        if sys.stderr.isatty():
            print(f"\r{len(seconds)} of {args.num_iters}", end="\n" * (len(seconds) == args.num_iters), file=sys.stderr)
    return seconds, first_s


def _check_complete(args: argparse.Namespace, outputs: "Sequence[RequestOutput]") -> None:
    """Check that every completion has --output-len tokens. Raises ConfigError."""
    shortest = min(len(completion.token_ids) for output in outputs for completion in output.outputs)
    if shortest < args.output_len:
        raise ConfigError(
            f"only {shortest} of --output-len {args.output_len} tokens fit behind --input-len {args.input_len}; lower "
            "one, or raise --max-model-len or the size of the KV cache"
        )


def _numbers(args: argparse.Namespace, seconds: Sequence[float], first_s: Sequence[float]) -> dict[str, Any]:
    """The numbers, in seconds, under vLLM's names if it has them."""
    found = summary(seconds, PERCENTILES)
    assert found is not None  # num_iters is at least 1
    return {
        "avg_latency": found["mean"],
        "latencies": list(seconds),
        "percentiles": {str(percent): found[f"p{percent}"] for percent in PERCENTILES},
        "time_to_first_token": summary(first_s, PERCENTILES),
        "output_tokens_per_second": args.batch_size * args.n * args.output_len / found["mean"],
    }


def _text(args: argparse.Namespace, numbers: dict[str, Any]) -> str:
    first = numbers["time_to_first_token"]
    lines = [
        f"{args.num_iters} times {args.batch_size} prompts of {args.input_len} tokens, {args.output_len} new ones each",
        f"mean latency         {numbers['avg_latency']:.4f} s",
        *(f"{percent:>3}% latency         {value:.4f} s" for percent, value in numbers["percentiles"].items()),
        f"output tokens        {numbers['output_tokens_per_second']:.1f} a second",
    ]
    if first is not None:
        lines.insert(2, f"mean first token     {first['mean']:.4f} s")
    return "\n".join(lines)
