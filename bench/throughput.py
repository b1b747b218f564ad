"""Offline throughput: N prompts of a length in, so many tokens out, greedy, end of sequence ignored.

    python bench/throughput.py                               the demo model, all cases
    python bench/throughput.py --shape qwen3-0.6b            a real model's shape with dummy weights
    python bench/throughput.py --model DIR --num-prompts 8 --input-len 128 --output-len 64

Each case runs `--repeat` times; the line shows the median, and all runs in --json. A figure from a machine with other
work on it means little: quote ratios of runs that alternate.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from shape import add_model_flags, model_options

# name: (prompts, tokens in, tokens out)
CASES = {
    "decode1": (1, 32, 64),
    "prefill1": (1, 1024, 1),
    "prefill4": (4, 1024, 1),
    "batch8": (8, 128, 64),
    "batch32": (32, 128, 64),
    "long4": (4, 1536, 64),
}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_flags(parser)
    parser.add_argument("--case", action="append", choices=CASES, help="may be given several times (default: all)")
    parser.add_argument("--num-prompts", type=int, help="a case of your own, with --input-len and --output-len")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", choices=("int8", "int4"), help="of the matrices (default: as dtype says)")
    parser.add_argument("--threads", type=int, help="threads of a step (default: the engine's own choice)")
    parser.add_argument("--profile", action="store_true", help="print torch's operator table of one more run per case")
    parser.add_argument("--json", type=Path, help="write all figures here")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    started = time.perf_counter()
    from lullm import LLM
    from lullm.machine.processor import default_num_threads

    options = {
        "dtype": args.dtype,
        "quantization": args.quantization,
        "threads": args.threads,
        "enable_prefix_caching": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(**options, **model_options(folder, args.shape, args.model, max_model_len=4096))
    report = {"model": args.shape or args.model, "quantization": args.quantization, "cases": {}}
    report["threads"] = args.threads or default_num_threads()
    report["start_s"] = round(time.perf_counter() - started, 2)
    print(f"{report['model']}: ready after {report['start_s']:.2f} s, {report['threads']} threads", flush=True)
    cases = {name: CASES[name] for name in args.case or CASES}
    if args.num_prompts:
        cases = {"own": (args.num_prompts, args.input_len, args.output_len)}
    run(llm, 2, 16, 4)  # threads and buffers are warm afterwards
    limit = llm.llm_engine.config.max_model_len
    for name, (num, input_len, output_len) in cases.items():
        if input_len + output_len > limit:
            print(f"{name:10} skipped: {input_len} + {output_len} tokens are more than the model's {limit}")
            continue
        seconds = [run(llm, num, input_len, output_len) for _ in range(args.repeat)]
        median = statistics.median(seconds)
        report["cases"][name] = {"num": num, "input_len": input_len, "output_len": output_len, "seconds": seconds}
        print(
            f"{name:10} n={num:<3} in={input_len:<5} out={output_len:<4} {median:7.2f} s  "
            f"out {num * output_len / median:8.1f} tok/s  total {num * (input_len + output_len) / median:8.1f} tok/s  "
            f"(runs {min(seconds):.2f}-{max(seconds):.2f} s)",
            flush=True,
        )
        if args.profile:
            profile(llm, num, input_len, output_len)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


def run(llm, num: int, input_len: int, output_len: int) -> float:
    """Seconds from the first request to the last token."""
    from lullm import SamplingParams

    rng = random.Random(0)
    vocab_size = min(llm.llm_engine.model_config.vocab_size, 7900)
    prompts = [[rng.randrange(10, vocab_size) for _ in range(input_len)] for _ in range(num)]
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    elapsed = time.perf_counter() - started
    assert all(len(output.outputs[0].token_ids) == output_len for output in outputs)
    return elapsed


def profile(llm, num: int, input_len: int, output_len: int) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    with torch_profile(activities=[ProfilerActivity.CPU]) as found:
        run(llm, num, input_len, output_len)
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))


if __name__ == "__main__":
    main()
