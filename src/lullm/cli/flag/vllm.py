"""vLLM's flags that lullm lacks: values that ask for nothing pass, others are refused with advice."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from lullm.types.vllm_argument import VllmArgument


class VllmFlag(argparse.Action):
    """A flag without an entry in the help and without an attribute."""

    def __init__(self, option_strings: list[str], dest: str, argument: VllmArgument, nargs: Any):
        hidden = argparse.SUPPRESS
        super().__init__(option_strings, hidden, nargs, default=hidden, help=hidden)
        self._argument = argument

    def __call__(self, parser: argparse.ArgumentParser, args: Any, values: Any, name: Any = None) -> None:
        value = [_said(each) for each in values] if isinstance(values, list) else _said(values)
        if self.nargs == 0:
            value = not str(name).startswith("--no-")
        if not self._argument.asks_for_nothing(value):
            parser.error(f"{name} is not supported: {self._argument.advice}")


def add_vllm_flags(parser: argparse.ArgumentParser, known: Mapping[str, VllmArgument]) -> None:
    """Add a flag for each of vLLM's arguments that the parser lacks."""
    for name, argument in known.items():
        flag = f"--{name.replace('_', '-')}"
        if flag in parser._option_string_actions:
            continue
        if isinstance(argument.default, bool):
            parser.add_argument(flag, f"--no-{flag[2:]}", action=VllmFlag, argument=argument, nargs=0)
        else:
            nargs = "+" if isinstance(argument.default, tuple) else None
            parser.add_argument(flag, action=VllmFlag, argument=argument, nargs=nargs)


def _said(text: Any) -> Any:
    """The number, list or dict in a text of JSON; other texts unchanged."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return None if text == "None" else text
    return text if isinstance(value, str) else value
