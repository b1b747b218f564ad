"""What every engine's runner does alike: take its command line, say when it is ready, time cases, print JSON lines.

A runner is started as a process of its own by the interpreter in which its engine is installed, so this file needs the
standard library only. It prints, one JSON object a line and each after a mark that tells it from an engine's own words:

    {"event": "ready"}                        the engine could take a request
    {"event": "first_token"}                  one prompt of 32 tokens has its first new token
    {"event": "case", "name": ..., "seconds": [...]}
    {"event": "done", "version": ..., "note": ...}
"""

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MARK = "@@bench "

Generate = Callable[[Sequence[list[int]], int], int]
"""(prompts, new tokens for each) -> tokens generated in all; greedy, the end of sequence ignored."""


def parse_arguments(description: str) -> argparse.Namespace:
    """`case`: (name, prompts, tokens in, tokens out) each; `option`: what the runner makes of it."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--case", action="append", type=_case, default=[], metavar="NAME:NUM:IN:OUT")
    parser.add_argument("--option", action="append", type=_option, default=[], metavar="NAME=JSON")
    args = parser.parse_args()
    args.option = dict(args.option)
    return args


def kv_cache_gb(args: argparse.Namespace) -> int:
    """GiB for an engine that wants to be told: 2 hold the cases of Qwen3-0.6B's shape, a prompt of 32,768 takes 3.5."""
    return 2 if args.max_model_len <= 16384 + 128 else 4


def multiplies_bf16() -> bool:
    """Does this processor have products of bfloat16, and may oneDNN use them? Without them float32 is quicker there."""
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA") not in ("AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI")
    facts = Path("/proc/cpuinfo")
    return allowed and (not facts.exists() or "bf16" in facts.read_text())


def run(args: argparse.Namespace, generate: Generate, version: str, note: str = "") -> None:
    """Time the cases of a ready engine and print the lines."""
    _say(event="ready")
    rng = random.Random(0)
    generate(_prompts(rng, 1, 32), 1)
    _say(event="first_token")
    warm = set()
    for name, num, input_len, output_len in args.case:
        # Kernels that are compiled per shape, buffers and threads: not what a case is about. Once per shape and kind
        # of step: a prompt of 32,768 takes a minute or two.
        if (num, input_len, output_len > 1) not in warm:
            generate(_prompts(rng, num, input_len), min(2, output_len))
            warm |= {(num, input_len, False), (num, input_len, output_len > 1)}
        seconds = []
        for _ in range(args.repeat):
            prompts = _prompts(rng, num, input_len)
            started = time.perf_counter()
            num_tokens = generate(prompts, output_len)
            seconds.append(time.perf_counter() - started)
            if num_tokens != num * output_len:
                sys.exit(f"{name}: {num_tokens} tokens came, not {num * output_len}")
        _say(event="case", name=name, seconds=seconds)
    _say(event="done", version=version, note=note)


def _prompts(rng: random.Random, num: int, length: int) -> list[list[int]]:
    """Random tokens: no two prompts share a prefix that an engine could have kept."""
    return [[rng.randrange(10, 7900) for _ in range(length)] for _ in range(num)]


def _say(**fields: Any) -> None:
    print(MARK + json.dumps(fields), flush=True)


def _case(text: str) -> tuple[str, int, int, int]:
    name, num, input_len, output_len = text.split(":")
    return name, int(num), int(input_len), int(output_len)


def _option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)
