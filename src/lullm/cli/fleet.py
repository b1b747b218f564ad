"""The models of `lullm serve`, if they are several: from the command line, and from the file `--models-config`."""

import argparse
from collections.abc import Sequence
from typing import Any, get_args

from lullm.cli.flag.engine import add_engine_flags
from lullm.cli.flag.settings import NAMED, flag_of, read_mapping, tokens
from lullm.cli.parser import CommandParser
from lullm.config.engine import EngineConfig
from lullm.config.lora.module import parse_module
from lullm.config.option.option import options_of
from lullm.errors import ConfigError
from lullm.fleet.options import Eviction, FleetOptions, ModelSpec

FOR_ALL = "*"
"""The section whose keys are for all models."""
_SERVERS = frozenset({"served_model_name", "enable_sleep_mode"})
"""Options of engines that are the server's here: a section is named as its model is, and all sleep for room anyway."""
_OWN = ("aliases", "preload", "pinned", "evict_to", "lora_modules", "prompt_adapters")


def named_models(args: argparse.Namespace) -> list[str]:
    """The models that stand on the command line without a flag."""
    return [*([] if args.positional_model is None else [args.positional_model]), *args.words]


def fleet_options(args: argparse.Namespace) -> FleetOptions | None:
    """The options of several models; None: there is one. Raises ConfigError."""
    names = {each.name for each in options_of(FleetOptions)}
    given = {name: value for name, value in vars(args).items() if name in names}
    if len(named_models(args)) > 1 or {"models_config", "memory_budget"} & given.keys():
        return FleetOptions(**given)
    if given:
        name = next(iter(given)).removesuffix("_s")
        raise ConfigError(f"{name} is for several models: name them all, or give models_config or memory_budget")
    return None


def model_specs(args: argparse.Namespace, options: FleetOptions) -> list[ModelSpec]:
    """The models, in their order: those of the command line, then those of the file. Raises ConfigError."""
    if args.model_aliases or hasattr(args, "served_model_name"):
        raise ConfigError("served_model_name is for one model; name each of several: NAME=MODEL, or by its section")
    names = {each.name for each in options_of(EngineConfig)} - {"model", "served_model_name"}
    # A second pool in the same memory would double each cache; preempted requests are computed again. Requests wake
    # their models, so that `wake_timeout` has a meaning without a `sleep_after`, too.
    given = {name: value for name, value in vars(args).items() if name in names}
    base = {"swap_space": 0.0, "auto_wake": True} | given | {"enable_sleep_mode": True}
    words = named_models(args) or ([args.model] if hasattr(args, "model") else [])
    specs = [_of_word(word, base) for word in words]
    if options.models_config is not None:
        specs += _of_file(options.models_config, base)
    if not specs:
        raise ConfigError("no model is named; name models, or give each a section in models_config")
    return specs


def _of_word(word: str, base: dict[str, Any]) -> ModelSpec:
    """`MODEL` or `NAME=MODEL`."""
    name, is_named, model = word.partition("=")
    return _spec(name, model if is_named else name, base, {})


def _of_file(path: str, base: dict[str, Any]) -> list[ModelSpec]:
    sections = read_mapping("--models-config", path, "a section for each model, such as `small: {model: demo}`")
    for name, section in sections.items():
        if not isinstance(section, dict) or not all(isinstance(key, str) for key in section):
            raise ConfigError(f"--models-config {path}: the section {name!r} must hold keys, such as `model: demo`")
    common = sections.pop(FOR_ALL, {})
    parser = _section_parser()
    found = []
    for name, section in sections.items():
        source = f"--models-config {path}: {name}"
        # A key may stand under either spelling, as a setting may.
        keys = {flag_of(key): value for key, value in common.items()}
        keys |= {flag_of(key): value for key, value in section.items()}
        said = [word for key, value in keys.items() for word in tokens(key, value, parser.actions, source)]
        parser.check(said, source)
        given = vars(parser.parse_args(said))
        if "model" not in given:
            raise ConfigError(f"{source}: say which model: `model: FOLDER`, or a hub id")
        own = {key: given.pop(key) for key in _OWN if key in given}
        found.append(_spec(name, given.pop("model"), base | given, own))
    return found


class _SectionParser(CommandParser):
    """Reads the keys of a section as flags."""

    @property
    def actions(self) -> dict[str, argparse.Action]:
        """By flag."""
        return dict(self._option_string_actions)


def _section_parser() -> _SectionParser:
    parser = _SectionParser(prog="lullm", usage=argparse.SUPPRESS, add_help=False)
    add_engine_flags(parser, without=_SERVERS)
    absent = argparse.SUPPRESS
    parser.add_argument("--path", dest="model", default=absent)
    parser.add_argument("--aliases", nargs="+", default=absent)
    for flag in ("--lora-modules", "--prompt-adapters"):
        parser.add_argument(flag, nargs="+", metavar=NAMED, default=absent)
    for name in ("preload", "pinned"):
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=absent)
    parser.add_argument("--evict-to", choices=get_args(Eviction), default=absent)
    return parser


def _spec(name: str, model: str, options: dict[str, Any], own: dict[str, Any]) -> ModelSpec:
    if not model:
        raise ConfigError(f"the model {name!r} has no folder or hub id; write NAME=MODEL")
    config = EngineConfig(**options | {"model": model, "served_model_name": name})
    aliases: Sequence[str] = own.pop("aliases", ())
    for option in ("lora_modules", "prompt_adapters"):
        own[option] = tuple(parse_module(text, option) for text in own.get(option, ()))
    return ModelSpec(name=name, config=config, aliases=tuple(aliases), **own)
