"""Sampling flags of `run` and `chat`. A flag that is not given leaves the model's default."""

import argparse

from lullm.types.sampling_params import OutputKind, SamplingParams

_NAMES = ("max_tokens", "temperature", "top_p", "top_k", "seed")
DEFAULT_MAX_TOKENS = 256


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add --max-tokens, --temperature, --top-p, --top-k, --seed and --system."""
    group = parser.add_argument_group("sampling (defaults: the model's)")
    group.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        default=DEFAULT_MAX_TOKENS,
        help=f"longest answer in tokens (default: {DEFAULT_MAX_TOKENS})",
    )
    group.add_argument("--temperature", type=float, metavar="X", help="0 takes the likeliest token every time")
    group.add_argument("--top-p", type=float, metavar="X", help="draw from the likeliest tokens that sum up to X")
    group.add_argument("--top-k", type=int, metavar="N", help="draw from the N likeliest tokens; 0: from all")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same answer")
    group.add_argument("--system", metavar="TEXT", help="system message, for models with a chat template")


def sampling_params(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """`defaults` with the flags that were given, streamed. Raises InvalidRequestError."""
    changes = {name: getattr(args, name) for name in _NAMES if getattr(args, name) is not None}
    return defaults.replace(**changes, output_kind=OutputKind.DELTA)


def opening(args: argparse.Namespace) -> list[dict[str, str]]:
    """The first messages of every conversation: the system message, if there is one."""
    return [] if args.system is None else [{"role": "system", "content": args.system}]
