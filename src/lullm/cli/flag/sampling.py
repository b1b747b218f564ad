"""Sampling flags of `run` and `chat`. Without a flag the model's default holds, or llama.cpp's."""

import argparse
from typing import Any

from lullm.config.generation import LLAMA_CPP
from lullm.types.sampling_params import SamplingParams

NAMES = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop")
MAX_RAW_TOKENS = 256
"""For a text that is continued: unlike an answer, it may not end by itself."""


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags, and --system."""
    usual = ", ".join(f"{name} {value}" for name, value in LLAMA_CPP.items())
    group = parser.add_argument_group(
        "sampling",
        f"Without a flag the model's own default holds. If it has none, llama.cpp's does:\n{usual}.",
    )
    group.add_argument(
        *("-n", "--max-tokens"),
        type=int,
        metavar="N",
        help="longest answer in tokens (default: as many as the model's length allows; "
        f"{MAX_RAW_TOKENS} where a text is continued)",
    )
    group.add_argument(
        *("--temperature", "--temp"), type=float, metavar="X", help="0 takes the likeliest token every time"
    )
    group.add_argument("--top-p", type=float, metavar="X", help="draw from the likeliest tokens that sum up to X")
    group.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest tokens; 0: from all")
    group.add_argument("--min-p", type=float, metavar="X", help="leave out tokens below X times the likeliest")
    group.add_argument(
        "--repetition-penalty", type=float, metavar="X", help="above 1: tokens that were there become less likely"
    )
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer (default: any seed)")
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="the answer ends before this text; may be given again"
    )
    group.add_argument("--system", metavar="TEXT", help="system message, for models with a chat template")


def sampling_changes(args: argparse.Namespace) -> dict[str, Any]:
    """The flags' values, under the names of `SamplingParams`. Raises InvalidRequestError: a value is out of range."""
    changes = {name: getattr(args, name) for name in NAMES if getattr(args, name) is not None}
    SamplingParams(**changes)
    return changes


def opening(args: argparse.Namespace) -> list[dict[str, str]]:
    """The first messages of every conversation: the system message, if there is one."""
    return [] if args.system is None else [{"role": "system", "content": args.system}]
