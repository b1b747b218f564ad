"""Prompts of `bench latency` and `bench throughput`: random tokens, or those of a file, under vLLM's names."""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lullm.errors import ConfigError
from lullm.types.request import Prompt

DATASETS = ("random", "sharegpt", "custom")
DEFAULT_OUTPUT_LEN = 64


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt, and the number of tokens to generate."""

    prompt: Prompt
    output_len: int


def add_dataset_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `read_jobs`."""
    parser.add_argument("--num-prompts", type=int, default=100, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--dataset-name",
        choices=DATASETS,
        default="random",
        help='random tokens; or of --dataset-path: ShareGPT\'s JSON, or custom lines like {"prompt": "..."} '
        "(default: %(default)s)",
    )
    parser.add_argument("--dataset-path", type=Path, metavar="FILE", help="prompts, taken in turn")
    parser.add_argument("--input-len", type=int, metavar="N", help="random tokens a prompt (default: 128)")
    parser.add_argument(
        "--output-len",
        type=int,
        metavar="N",
        help=f"tokens that each prompt gives (default: those of ShareGPT's answer, else {DEFAULT_OUTPUT_LEN})",
    )
    parser.add_argument(
        *("--shared-len", "--prefix-len"),
        type=int,
        metavar="N",
        help="random tokens that all prompts share (default: 0)",
    )
    parser.add_argument(
        "--random-range-ratio",
        type=float,
        metavar="R",
        help="draw each length between (1 - R) and (1 + R) times the given one (default: 0)",
    )


def check_dataset(args: argparse.Namespace) -> None:
    """Check that the flags fit together; fill in the defaults of random prompts. Raises ConfigError."""
    is_random = args.dataset_name == "random"
    if is_random != (args.dataset_path is None):
        raise ConfigError(
            "--dataset-path needs --dataset-name sharegpt or custom"
            if is_random
            else f"--dataset-name {args.dataset_name} needs --dataset-path"
        )
    for name, default in (("input_len", 128), ("shared_len", 0), ("random_range_ratio", 0.0)):
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif not is_random:
            raise ConfigError(f"--{name.replace('_', '-')} is of random prompts; leave out --dataset-name")
    if not 0 <= args.random_range_ratio < 1:
        raise ConfigError(f"--random-range-ratio must be from 0 to below 1, got {args.random_range_ratio:g}")
    if not 0 <= args.shared_len <= args.input_len:
        raise ConfigError(f"--shared-len must be between 0 and --input-len, got {args.shared_len}")


def read_jobs(args: argparse.Namespace, vocab_size: int, seed: int, count: Callable[[str], int]) -> list[Job]:
    """The jobs of checked flags. `count`: counts the tokens of a text. Raises ConfigError: a file is wrong."""
    if args.dataset_name == "random":
        lengths = args.input_len, args.output_len or DEFAULT_OUTPUT_LEN
        return random_jobs(args.num_prompts, vocab_size, *lengths, seed, args.shared_len, args.random_range_ratio)
    rows = list(_rows(args.dataset_path, args.dataset_name))
    if not rows:
        raise ConfigError(f"--dataset-path: {args.dataset_path} has no prompt")
    jobs = []
    for number in range(args.num_prompts):
        prompt, answer = rows[number % len(rows)]
        own_len = DEFAULT_OUTPUT_LEN if answer is None else max(count(answer), 1)
        jobs.append(Job(prompt, args.output_len or own_len))
    return jobs


def random_jobs(
    num: int, vocab_size: int, input_len: int, output_len: int, seed: int, num_shared: int = 0, spread: float = 0.0
) -> list[Job]:
    """Prompts of random tokens; the first `num_shared` are equal in all. Lengths vary by a share of `spread`."""
    rng = random.Random(seed)
    shared = [rng.randrange(vocab_size) for _ in range(num_shared)]

    def length(mean: int) -> int:
        return rng.randint(max(int(mean * (1 - spread)), 1), int(mean * (1 + spread)))

    return [
        Job([*shared, *(rng.randrange(vocab_size) for _ in range(length(input_len) - num_shared))], length(output_len))
        for _ in range(num)
    ]


def _rows(path: Path, form: str) -> Iterator[tuple[str, str | None]]:
    """(prompt, answer if the file has one) of each entry. Raises ConfigError."""
    try:
        text = path.read_text("utf-8")
        entries = json.loads(text) if form == "sharegpt" else [json.loads(line) for line in text.splitlines() if line]
        for entry in entries:
            yield _pair(entry) if form == "sharegpt" else (str(entry["prompt"]), None)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        shape = '[{"conversations": [{"value": ...}, ...]}]' if form == "sharegpt" else 'lines like {"prompt": ...}'
        raise ConfigError(f"--dataset-path: {path} does not hold {shape} ({error})") from None


def _pair(entry: Any) -> tuple[str, str | None]:
    turns = [str(turn["value"]) for turn in entry["conversations"]]
    return turns[0], turns[1] if len(turns) > 1 else None
