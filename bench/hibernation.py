"""Hibernation: bytes and seconds to write running requests to disk, and to go on with them beside computing them again.

python bench/hibernation.py                                # the demo model
python bench/hibernation.py --shape qwen3-0.6b             # dummy weights of a shape

An engine computes the prompts and hibernates. Then two new engines in turn get to the next token of all requests: one
resumes, the other computes the prompts (and the tokens drawn so far) again. Both are ready when their clock begins.
"""

import argparse
import random
import statistics
import tempfile
import time
from typing import Any

from shape import add_model_flags, model_options

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_flags(parser)
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = model_options(folder, args.shape, args.model, max_model_len=4096)
        rounds = [run(args, options, f"{folder}/hibernation") for _ in range(args.repeat)]
    written, hibernate_s, resume_s, next_s, again_s = (
        statistics.median(column) for column in zip(*rounds, strict=True)
    )
    print(f"{args.num_prompts} requests of {args.input_len} tokens, medians of {args.repeat}")
    print("| written, MiB | hibernate, s | resume, s | to the next token, s | computed again, s | ratio |")
    print("|--:|--:|--:|--:|--:|--:|")
    print(
        f"| {written / MIB:.1f} | {hibernate_s:.2f} | {resume_s:.2f} | {next_s:.2f} | {again_s:.2f} "
        f"| {next_s / again_s:.2f} |"
    )


def run(args: argparse.Namespace, options: dict[str, Any], path: str) -> tuple[float, ...]:
    from lullm import LLM

    llm = LLM(**options)
    add_prompts(llm, args)
    draw_next(llm)
    report = llm.hibernate(path)
    llm = LLM(**options)
    llm.generate("warm", use_tqdm=False)
    started = time.perf_counter()
    resumed = llm.resume(path)
    draw_next(llm)
    next_s = time.perf_counter() - started
    llm.shutdown()
    llm = LLM(**options)
    llm.generate("warm", use_tqdm=False)
    started = time.perf_counter()
    add_prompts(llm, args)
    draw_next(llm)
    again_s = time.perf_counter() - started
    llm.shutdown()
    return report.written_bytes, report.seconds, resumed.seconds, next_s, again_s


def add_prompts(llm: Any, args: argparse.Namespace) -> None:
    from lullm import SamplingParams

    rng = random.Random(0)
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    for number in range(args.num_prompts):
        llm.llm_engine.add_request(f"r{number}", [rng.randrange(3, 250) for _ in range(args.input_len)], params)


def draw_next(llm: Any) -> None:
    """Step until every request has got a token."""
    waiting = set(llm.llm_engine.unfinished_request_ids())
    while waiting:
        waiting -= {output.request_id for output in llm.llm_engine.step()}


if __name__ == "__main__":
    main()
