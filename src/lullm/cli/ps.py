"""`lullm ps`: what a running server is doing, in one line, from its /metrics."""

import argparse
from collections.abc import Callable

from lullm.cli.remote import RemoteServer, add_server_flags
from lullm.errors import LullmError
from lullm.types.sleep import TAGS

TIMEOUT_S = 10.0


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The sub-command and its flags."""
    parser = commands.add_parser(
        "ps",
        help="show what a running server is doing",
        description="Show a running server's model, whether it sleeps, its requests and its use of the KV cache.",
    )
    add_server_flags(parser, "--api-key", "the server's --api-key, if it has one")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the server's state. Raises LullmError."""
    server = RemoteServer(args.url, args.key)
    text = server.get("/metrics", TIMEOUT_S)
    try:
        row = _row(text)
    except (ValueError, KeyError):
        raise LullmError(f"what listens on {server.url} is not a lullm server") from None
    head = ("MODEL", "STATE", "RUNNING", "WAITING", "SWAPPED", "KV CACHE")
    widths = [max(map(len, column)) for column in zip(head, row, strict=True)]
    for cells in (head, row):
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return 0


def _row(text: str) -> tuple[str, ...]:
    """The cells of one server's line. Raises ValueError, KeyError if `text` is not what a lullm server exposes."""
    # Only this command parses metrics.
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[tuple[str, str | None], float] = {}
    model = ""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name, sample.labels.get("tag")] = sample.value
            model = sample.labels.get("model_name", model)

    def number(name: str) -> int:
        return int(values[f"lullm_{name}", None])

    num_used, num_blocks = number("num_kv_blocks_used"), number("num_kv_blocks")
    return (
        model,
        _state(values, number),
        *(str(number(f"num_requests_{name}")) for name in ("running", "waiting", "swapped")),
        f"{num_used} of {num_blocks} blocks ({num_used / max(num_blocks, 1):.0%})",
    )


def _state(values: dict[tuple[str, str | None], float], number: Callable[[str], int]) -> str:
    tags = [tag for tag in TAGS if values["lullm_engine_sleeping", tag]]
    if tags:
        return f"asleep ({', '.join(tags)})"
    return "paused" if number("engine_is_sleeping") else "awake"
