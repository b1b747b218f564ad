"""Flags of options: one `--flag` per option of `EngineConfig` or of another dataclass, made from its declaration."""

import argparse
from collections.abc import Callable, Collection
from typing import Any

from lullm.cli.flag.vllm import add_vllm_flags
from lullm.config.engine import EngineConfig
from lullm.config.option.option import Option, options_of
from lullm.config.option.vllm import VLLM_OPTIONS
from lullm.units import GIB, KIB, MIB

SLEEP_OPTIONS = frozenset(each.name for each in options_of(EngineConfig) if each.group in ("sleep", "idle"))
"""Options for commands whose engine can sleep."""
LORA_OPTIONS = frozenset(each.name for each in options_of(EngineConfig) if each.group == "LoRA")
"""Options for commands whose requests may name adapters."""
PROMPT_ADAPTER_OPTIONS = frozenset(each.name for each in options_of(EngineConfig) if "prompt_adapter" in each.name)
"""Options for commands whose requests may name prompt adapters."""
CLIENT_OPTIONS = (
    SLEEP_OPTIONS
    | LORA_OPTIONS
    | PROMPT_ADAPTER_OPTIONS
    | {
        *("served_model_name", "worker_extension_cls", "scheduling_policy"),
        *("max_logprobs", "logprobs_mode", "tool_call_parser", "enable_prompt_embeds"),
    }
)
"""Options that commands with their own requests do not need: they name no model, call no workers, have no rank, rows or
tools, and use no log-probabilities.
"""
REPLY_OPTIONS = frozenset(each.name for each in options_of(EngineConfig) if each.group == "replies")
"""Options for commands with conversations."""

_SHORT = {
    "model": ("-m",),
    "mmproj": ("-mm",),
    "max_model_len": ("-c",),
    "quantization": ("-q",),
    "tensor_parallel_size": ("-tp",),
    "pipeline_parallel_size": ("-pp",),
    "data_parallel_size": ("-dp",),
    "enable_expert_parallel": ("-ep",),
}

_SIZES = {"": 1, "b": 1, "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB}


def byte_count(text: str) -> int:
    """`'1048576'`, `'512MiB'`, `'1.5g'` -> bytes (powers of 1024)."""
    number = text.rstrip("BGIKMbgikm")
    unit = text[len(number) :].lower()
    try:
        return int(float(number) * _SIZES[unit]) if unit else int(number)
    except (KeyError, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 1048576, 512MiB or 2GiB") from None


def token_count(text: str) -> int:
    """`'4096'`, `'32k'` (32,000) or `'32K'` (32,768) -> tokens, as vLLM reads them."""
    factor = {"k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}.get(text[-1:], 1)
    try:
        return int(text) if factor == 1 else int(float(text[:-1]) * factor)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens like 4096, 32k or 32K") from None


def _int_or_none(text: str) -> int | None:
    """An integer, or 'none' to turn a default off."""
    try:
        return None if text.lower() == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither an integer nor 'none'") from None


def add_engine_flags(parser: argparse.ArgumentParser, without: Collection[str] = ()) -> None:
    """The engine's flags in their groups, and vLLM's."""
    add_option_flags(parser, EngineConfig, without)
    add_vllm_flags(parser, VLLM_OPTIONS)


def add_option_flags(
    parser: argparse.ArgumentParser, declaring: type, without: Collection[str] = ()
) -> "dict[str, argparse._ArgumentGroup]":
    """Add a flag for each option of a dataclass. Returns the groups by title.

    A flag that is not given leaves no attribute: the option's default holds.
    """
    options = [each for each in options_of(declaring) if each.name not in without and each.flag != ""]
    groups: dict[str, argparse._ArgumentGroup] = {
        title: parser.add_argument_group(title) for title in dict.fromkeys(each.group for each in options)
    }
    for each in options:
        _add_flag(groups[each.group], each)
    return groups


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The config of the engine flags that were given. Raises ConfigError."""
    names = {each.name for each in options_of(EngineConfig)} - args.not_engine
    return EngineConfig(**{name: value for name, value in vars(args).items() if name in names})


def _add_flag(group: argparse._ArgumentGroup, option: Option) -> None:
    facts: dict[str, Any] = {"default": argparse.SUPPRESS, "help": option.shown_help.replace("%", "%%")}
    if option.kind is bool:
        facts["action"] = argparse.BooleanOptionalAction
    elif option.choices:
        facts["choices"] = option.choices
    else:
        facts["type"], facts["metavar"] = _reader(option)
        if option.is_repeated:
            facts["action"] = "append"
    name = option.flag or option.name.replace("_", "-")
    action = group.add_argument(*_SHORT.get(option.name, ()), f"--{name}", dest=option.name, **facts)
    action.advice = option.advice  # type: ignore[attr-defined]  # for the error of `CommandParser`
    if option.off is not None:
        off: dict[str, Any] = {"action": "store_const", "const": option.off, "default": argparse.SUPPRESS}
        group.add_argument(f"--no-{name}", dest=option.name, help=f"--{name} {option.off}", **off)


def _reader(option: Option) -> tuple[Callable[[str], Any], str]:
    """(the function that reads the flag's value, the value's name in the help)."""
    if option.unit == "bytes":
        return byte_count, "SIZE"
    if option.unit == "tokens":
        return token_count, "N"
    if option.kind is int:
        return (_int_or_none if option.is_optional and option.default is not None else int), "N"
    if option.kind is float:
        return float, "S" if option.unit == "seconds" else "X"
    return option.kind, option.value_name or option.name.upper()
