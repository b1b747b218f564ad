"""Many clients against one server whose KV pool holds a few of them: does every request end, does memory stay flat?

    python bench/load.py                     200 streams at once, a pool for 20, three waves
    python bench/load.py --clients 50 --waves 10

Starts `lullm serve` on a free loopback port, sends the waves, reads the server's resident memory (Linux) after each,
and stops it with SIGTERM. Exit code 1 if a stream failed or the server did not exit with 0.
"""

import argparse
import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx


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
            errors = [r for r in results if isinstance(r, str)]
            failed += len(errors)
            firsts = [r[0] for r in results if not isinstance(r, str)]
            tokens = sum(r[1] for r in results if not isinstance(r, str))
            print(
                f"wave {wave}: {len(results) - len(errors)} ended, {len(errors)} failed, {tokens / elapsed:.0f} tok/s, "
                f"first token median {statistics.median(firsts or [0]):.2f} s, server {rss_mib(server.pid):.0f} MiB",
                flush=True,
            )
            for error in errors[:3]:
                print("   ", error)
        metrics = httpx.get(f"{url}/metrics").text
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


async def send_wave(url: str, num: int, max_tokens: int) -> list:
    limits = httpx.Limits(max_connections=num)
    async with httpx.AsyncClient(limits=limits, timeout=300) as client:
        return await asyncio.gather(*(stream(client, url, i, max_tokens) for i in range(num)))


async def stream(client: httpx.AsyncClient, url: str, number: int, max_tokens: int) -> tuple[float, int] | str:
    """(seconds to the first token, tokens) of one stream, or what went wrong."""
    body = {
        "prompt": f"Story number {number}: once upon a time",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": number,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first, usage, last = time.perf_counter(), None, None, ""
    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                return f"{response.status_code}: {(await response.aread())[:200]!r}"
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    first = first or time.perf_counter() - started
                    last = line[6:]
                    if last != "[DONE]":
                        chunk = json.loads(last)
                        usage = chunk.get("usage") or usage
                        if "error" in chunk:
                            return str(chunk["error"])
    except httpx.HTTPError as error:
        return repr(error)
    if last != "[DONE]" or usage is None or usage["completion_tokens"] != max_tokens:
        return f"ended early: {last!r} {usage}"
    return first, usage["completion_tokens"]


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


if __name__ == "__main__":
    sys.exit(main())
