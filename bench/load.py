"""Many clients against one server whose KV pool holds a few of them: does every request end, does memory stay flat?

    python bench/load.py                     200 streams at once, a pool for 20, three waves
    python bench/load.py --clients 50 --waves 10

Starts `lullm serve` on a free loopback port, sends the waves, reads the server's resident memory (Linux) after each,
and stops it with SIGTERM. Exit code 1 if a stream failed or the server did not exit with 0.
"""

import argparse
import asyncio
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from lullm.cli.bench.load import send_all
from lullm.cli.bench.stream import Sample, Target


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--fits", type=int, default=20, help="how many of the streams the pool holds at once")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--model", default="demo")
    args = parser.parse_args()

    blocks = args.fits * -(-(PROMPT_TOKENS + args.max_tokens) // 16)
    command = [sys.executable, "-m", "lullm.cli.main", "serve", "--model", args.model, "--port", "0"]
    command += ["--num-gpu-blocks-override", str(blocks), "--max-num-seqs", "256", "--no-enable-prefix-caching"]
    command += ["--max-model-len", "256"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        url = ready_url(server)
        print(f"{args.clients} streams of {args.max_tokens} tokens over {blocks} blocks, {url}", flush=True)
        failed = 0
        for wave in range(args.waves):
            started = time.perf_counter()
            results = asyncio.run(send_wave(url, args.clients, args.max_tokens))
            elapsed = time.perf_counter() - started
            errors = [sample.error for sample in results if sample.error is not None]
            failed += len(errors)
            firsts = [sample.first_s for sample in results if sample.error is None]
            tokens = sum(sample.num_output for sample in results if sample.error is None)
            print(
                f"wave {wave}: {len(results) - len(errors)} ended, {len(errors)} failed, {tokens / elapsed:.0f} tok/s, "
                f"first token median {statistics.median(firsts or [0]):.2f} s, server {rss_mib(server.pid):.0f} MiB",
                flush=True,
            )
            for error in errors[:3]:
                print("   ", error)
        metrics = urllib.request.urlopen(f"{url}/metrics").read().decode()
        for name in ("preemptions_total", "kv_cache_usage", "requests_running"):
            print(*re.findall(rf"^lullm_\w*{name}\w*(?:{{.*}})? .*$", metrics, flags=re.M), sep="\n")
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(60)
    print(f"SIGTERM: exit code {code}")
    return int(bool(failed or code))


PROMPT_TOKENS = 16  # roughly: the prompts below through the chat template


def ready_url(server: subprocess.Popen) -> str:
    lines = []
    for line in server.stdout:
        lines.append(line)
        found = re.search(r"ready on (http://\S+)", line)
        if found:
            return found.group(1)
    raise SystemExit("the server did not start:\n" + "".join(lines[-5:]))


async def send_wave(url: str, num: int, max_tokens: int) -> list[Sample]:
    """All streams at once; one that ended early has an error."""
    bodies = [
        {
            "prompt": f"Story number {number}: once upon a time",
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 1.0,
            "seed": number,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for number in range(num)
    ]
    samples = await send_all(Target.of(url, "/v1/completions", None), bodies, [0.0] * num, None)
    for sample in samples:
        if sample.error is None and sample.num_output != max_tokens:
            sample.error = f"ended early, after {sample.num_output} tokens"
    return samples


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


if __name__ == "__main__":
    sys.exit(main())
