"""`lullm bench throughput`: requests and tokens per second of one engine, for a list of prompts."""

import argparse
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any

from lullm.cli.bench.dataset import add_dataset_flags, check_dataset, read_jobs
from lullm.cli.bench.engine import add_measured_engine, measured_config
from lullm.cli.bench.record import check_at_least, write_record
from lullm.cli.flag.model import add_model_argument

if TYPE_CHECKING:
    from lullm.llm.llm import LLM


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm bench throughput`."""
    parser.usage = "lullm bench throughput [MODEL] [FLAGS]"
    parser.description = (
        "Generate for a list of prompts, all at once, and print requests and tokens a second. Each prompt "
        "gives all of its tokens (the end of a sequence is ignored)."
    )
    add_model_argument(parser)
    add_dataset_flags(parser)
    parser.add_argument("--n", type=int, default=1, metavar="N", help="completions a prompt (default: %(default)s)")
    add_measured_engine(parser, run)


def run(args: argparse.Namespace) -> int:
    """Measure and report. Raises LullmError."""
    check_at_least(args, 1, "num_prompts", "input_len", "output_len", "n")
    check_dataset(args)
    config = measured_config(args)
    from lullm.llm.llm import LLM
    from lullm.log import log_to_stderr

    log_to_stderr("WARNING")
    with LLM(**dataclasses.asdict(config)) as llm:
        numbers = _measure(args, llm, config.seed or 0)
    print(
        f"{numbers['num_requests']} requests in {numbers['elapsed_time']:.2f} s; {numbers['prompt_tokens']} prompt "
        f"tokens, {numbers['output_tokens']} output tokens\n{numbers['requests_per_second']:.2f} requests/s, "
        f"{numbers['output_tokens_per_second']:.1f} output tokens/s, {numbers['tokens_per_second']:.1f} tokens/s"
    )
    write_record(args, numbers)
    return 0


def _measure(args: argparse.Namespace, llm: "LLM", seed: int) -> dict[str, Any]:
    """The numbers, under vLLM's names if it has them."""
    from lullm.types.sampling_params import SamplingParams

    tokenizer = llm.get_tokenizer()
    jobs = read_jobs(args, llm.llm_engine.model_config.vocab_size, seed, lambda text: len(tokenizer.encode(text)))
    params = [SamplingParams(n=args.n, max_tokens=job.output_len, ignore_eos=True) for job in jobs]
    llm.generate([[1]], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)  # the first step is slower
    started = time.monotonic()
    outputs = llm.generate([job.prompt for job in jobs], params, use_tqdm=sys.stderr.isatty())
    elapsed = time.monotonic() - started
    num_prompt = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    return {
        "elapsed_time": elapsed,
        "num_requests": len(outputs),
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "total_num_tokens": num_prompt + num_output,
        "requests_per_second": len(outputs) / elapsed,
        "tokens_per_second": (num_prompt + num_output) / elapsed,
        "output_tokens_per_second": num_output / elapsed,
    }
