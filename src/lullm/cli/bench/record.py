"""The record of a measurement: its options, its machine and its numbers, as JSON."""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lullm
from lullm.errors import ConfigError
from lullm.machine.processor import default_num_threads, model_name

_NOT_OPTIONS = frozenset(
    {"run", "command", "what", "key", "json", "png", "config", "not_engine", "takes_settings", "positional_model"}
)


def add_record_flags(parser: argparse.ArgumentParser, has_picture: bool) -> None:
    """Add --json (vLLM: --output-json) and perhaps --png."""
    parser.add_argument("--json", "--output-json", type=Path, metavar="FILE", help="write the numbers, too")
    if has_picture:
        parser.add_argument("--png", type=Path, metavar="FILE", help="draw the distributions, too")


def check_record(args: argparse.Namespace) -> None:
    """Check before a long measurement that the files can be written. Raises ConfigError."""
    for path in (args.json, getattr(args, "png", None)):
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"the folder {path.parent} does not exist")
        if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
            raise ConfigError(f"{path} cannot be written to: it is a folder, or it is protected; give another file")


def check_at_least(args: argparse.Namespace, least: int, *names: str) -> None:
    """Check numbers. Raises ConfigError: one is below `least`."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")


def write_record(args: argparse.Namespace, numbers: Mapping[str, Any]) -> None:
    """Write --json, if given: options, machine, numbers. Keys are left out."""
    if args.json is None:
        return
    told = {name: _plain(value) for name, value in vars(args).items() if name not in _NOT_OPTIONS}
    machine = {"processor": model_name(), "cores": default_num_threads(), "lullm": lullm.__version__}
    args.json.write_text(json.dumps({"options": told, "machine": machine, **numbers}, indent=1) + "\n")


def summary(values: Sequence[float], percentiles: Sequence[int]) -> dict[str, float] | None:
    """Mean, percentiles (interpolated between neighbours) and maximum; None without values."""
    if not values:
        return None
    import numpy as np  # `lullm --help` need not wait for it

    found = np.percentile(values, percentiles)
    return {
        "mean": float(np.mean(values)),
        **{f"p{percent}": float(value) for percent, value in zip(percentiles, found, strict=True)},
        "max": max(values),
    }


def _plain(value: Any) -> Any:
    """The value in JSON's types."""
    if value == float("inf"):
        return None
    return str(value) if isinstance(value, Path) else value
