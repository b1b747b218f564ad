"""`lullm bench serve`: puts any OpenAI server under load, and prints its users' waiting times."""

import argparse
import time
from pathlib import Path
from typing import Any

from lullm.cli.bench.record import add_record_flags, check_at_least, check_record, write_record
from lullm.cli.flag.key import API_KEY_VARIABLE
from lullm.cli.remote.server import add_server_flags
from lullm.errors import ConfigError, LullmError

ENDPOINTS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm bench serve`."""
    parser.description = (
        "Send streamed requests to an OpenAI server (lullm, vLLM, llama.cpp, ...) as a Poisson process or "
        "with a fixed concurrency; print throughput, the times to first token (TTFT), per output token (TPOT), between "
        "tokens (ITL) and to the end, and the goodput: the requests that met their bounds."
    )
    add_server_flags(parser, "--api-key", "the server's API key, if it has one", API_KEY_VARIABLE)
    parser.add_argument("--model", metavar="NAME", help="model to ask for (default: the server's own)")
    parser.add_argument("--endpoint", choices=tuple(ENDPOINTS), default="completions", help="(default: %(default)s)")
    parser.add_argument("--num-requests", type=int, default=100, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--request-rate",
        type=float,
        default=float("inf"),
        metavar="R",
        help="requests a second (default: all at once)",
    )
    parser.add_argument("--concurrency", type=int, metavar="N", help="most requests at a time (default: any number)")
    parser.add_argument("--input-len", type=int, default=128, metavar="N", help="words a prompt (default: %(default)s)")
    parser.add_argument(
        "--shared-len",
        type=int,
        default=0,
        metavar="N",
        help="words that all prompts share (default: %(default)s)",
    )
    parser.add_argument("--output-len", type=int, default=64, metavar="N", help="tokens (default: %(default)s)")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="prompts, one a line, instead of random words; taken in turn"
    )
    parser.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="generate to the full length; a field that lullm and vLLM know (default: on)",
    )
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="(default: %(default)s)")
    parser.add_argument(
        "--goodput", nargs="+", default=[], metavar="NAME:MS", help="bounds of a good request, such as ttft:200 tpot:50"
    )
    parser.add_argument("--warmup", type=int, default=1, metavar="N", help="requests before (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and times (default: %(default)s)")
    add_record_flags(parser, has_picture=True)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Put the server under load and report; 1 if a request failed. Raises LullmError."""
    import asyncio

    from lullm.cli.bench.load import arrivals, send_all
    from lullm.cli.bench.report import TIMES, Report, parse_bounds, times_ms
    from lullm.cli.bench.stream import Target

    _check(args)
    bounds = parse_bounds(args.goodput)
    target = Target.of(args.url, ENDPOINTS[args.endpoint], args.key)
    args.model = args.model or _served_model(args)
    bodies = [_body(args, prompt) for prompt in _prompts(args)]
    first, bodies = bodies[: args.warmup], bodies[args.warmup :]
    for sample in asyncio.run(send_all(target, first, [0.0] * len(first), None)):
        if sample.error is not None:
            raise LullmError(f"the server on {args.url} does not answer as it should: {sample.error}")
    started = time.perf_counter()
    times = arrivals(args.num_requests, args.request_rate, args.seed)
    samples = asyncio.run(send_all(target, bodies, times, args.concurrency))
    report = Report(samples, time.perf_counter() - started, bounds)
    print(report.text())
    write_record(args, report.as_dict())
    if args.png is not None:
        from lullm.draw.distribution import draw_distributions

        named = {f"{TIMES[name]} ({name})": values for name, values in times_ms(report.good).items()}
        title = f"{args.model}: {args.num_requests} requests, percent below"
        draw_distributions(named, title, "ms").write(args.png)
    return int(len(report.good) < len(samples))


def _check(args: argparse.Namespace) -> None:
    check_at_least(args, 1, "num_requests", "input_len", "output_len", "concurrency")
    check_at_least(args, 0, "warmup")
    if not args.request_rate > 0:
        raise ConfigError(f"--request-rate must be above 0, got {args.request_rate:g}")
    if not 0 <= args.shared_len <= args.input_len:
        raise ConfigError(f"--shared-len must be between 0 and --input-len, got {args.shared_len}")
    check_record(args)


def _served_model(args: argparse.Namespace) -> str:
    """The first model that the server names. Raises LullmError."""
    from lullm.cli.remote.server import RemoteServer

    try:
        return str(RemoteServer(args.url, args.key).get_json("/v1/models")["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise LullmError(f"the server on {args.url} names no model; give --model") from None


def _prompts(args: argparse.Namespace) -> list[str]:
    from lullm.cli.bench.load import prompts_of

    num = args.num_requests + args.warmup
    if args.prompts is None:
        return prompts_of(num, args.input_len, args.seed, args.shared_len)
    try:
        lines = [line for line in args.prompts.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompts: {args.prompts} is not text in UTF-8 ({error})") from None
    if not lines:
        raise ConfigError(f"--prompts: {args.prompts} has no lines")
    return [lines[number % len(lines)] for number in range(num)]


def _body(args: argparse.Namespace, prompt: str) -> dict[str, Any]:
    is_chat = args.endpoint == "chat"
    return {
        "model": args.model,
        **({"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}),
        "max_tokens": args.output_len,
        "temperature": args.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if args.ignore_eos else {}),
    }
