"""`lullm ps`: the state of a running server in a line for each model, read from its /metrics."""

import argparse
from typing import TYPE_CHECKING

from lullm.cli.flag.key import API_KEY_VARIABLE
from lullm.cli.remote.server import RemoteServer, add_server_flags
from lullm.errors import LullmError

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

TIMEOUT_S = 10.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm ps`."""
    parser.description = (
        "Show a running server's model, or each of several: whether it sleeps, its requests, its use of the KV cache, "
        "how long it has been idle, and when it goes to sleep by itself, or deeper."
    )
    add_server_flags(parser, "--api-key", "the server's --api-key, if it has one", API_KEY_VARIABLE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the server's state. Raises LullmError."""
    server = RemoteServer(args.url, args.key)
    text = server.get("/metrics", TIMEOUT_S)
    try:
        rows = _rows(text)
    except (ValueError, KeyError):
        if "# TYPE vllm:" in text:
            raise LullmError(f"{server.url} has metrics under vLLM's names only (--metrics-prefix vllm)") from None
        raise LullmError(f"what listens on {server.url} is not a lullm server") from None
    head = ("MODEL", "STATE", "RUNNING", "WAITING", "SWAPPED", "KV CACHE", "IDLE", "NEXT SLEEP")
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for cells in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return 0


def _rows(text: str) -> list[tuple[str, ...]]:
    """The cells of a line for each model. Raises ValueError, KeyError: `text` has no metrics of a lullm server."""
    # Only this command parses metrics.
    from prometheus_client.parser import text_string_to_metric_families

    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    by_model: dict[str, list[Sample]] = {}
    for sample in samples:
        by_model.setdefault(sample.labels.get("model_name", ""), []).append(sample)
    if not by_model:
        raise ValueError("there are no metrics")
    if len(by_model) > 1:  # what is of no model is the process's, or the fleet's
        by_model.pop("", None)
    return [_row(model, of_model) for model, of_model in by_model.items()]


def _row(model: str, samples: "list[Sample]") -> tuple[str, ...]:
    values = {sample.name: sample.value for sample in samples}
    num_used, num_blocks = int(values["lullm_num_kv_blocks_used"]), int(values["lullm_num_kv_blocks"])
    return (
        model,
        _state(samples),
        *(str(int(values[f"lullm_num_requests_{name}"])) for name in ("running", "waiting", "swapped")),
        f"{num_used} of {num_blocks} blocks ({num_used / max(num_blocks, 1):.0%})",
        _duration(values["lullm_engine_idle_seconds"]),
        _next_sleep(samples),
    )


def _state(samples: "list[Sample]") -> str:
    for sample in samples:  # of several models, which may have no engine at all
        is_now = sample.name == "lullm_model_state" and sample.value == 1
        if is_now and sample.labels["state"] not in ("awake", "sleeping"):
            return sample.labels["state"].replace("_", " ")
    (state,) = (s.labels["state"] for s in samples if s.name == "lullm_engine_sleep_state" and s.value == 1)
    tags = [s.labels["tag"] for s in samples if s.name == "lullm_engine_sleeping" and s.value == 1]
    if not tags:
        return str(state)
    level = {"weights_offloaded": "level 1: ", "discard_all": "level 2: "}.get(state, "")
    return f"asleep ({level}{', '.join(tags)})"


def _next_sleep(samples: "list[Sample]") -> str:
    for sample in samples:
        if sample.name == "lullm_engine_next_sleep_seconds":
            backup = sample.labels["backup"]
            depth = f"level {sample.labels['level']}" + ("" if backup == "auto" else f" to {backup}")
            return f"{depth} in {_duration(sample.value)}"
    return "-"


def _duration(seconds: float) -> str:
    """`75` -> `'1m15s'`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
