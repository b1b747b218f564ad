"""EngineArgs: an engine's options for vLLM's scripts: mutable, as flags, with vLLM's other names."""

import argparse
import dataclasses
from typing import Any, Self

from lullm.cli.flag.engine import add_engine_flags
from lullm.config.engine import EngineConfig
from lullm.config.option.option import options_of
from lullm.config.option.vllm import VLLM_OPTIONS

_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(VLLM_OPTIONS),
    **{option.name: option.default for option in options_of(EngineConfig)},
}


class _Gathered:
    """The methods of `EngineArgs`."""

    @property
    def given(self) -> dict[str, Any]:
        """The options that were set, for `LLM(**given)`."""
        return {name: getattr(self, name) for name, default in _DEFAULTS.items() if getattr(self, name) != default}

    def create_engine_config(self) -> EngineConfig:
        """The checked options. Raises ConfigError, as `EngineConfig` does."""
        return EngineConfig.from_options(self.given)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add a flag for each option of `EngineConfig`."""
        add_engine_flags(parser)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """The options among the arguments of a command line."""
        return cls(**{name: value for name, value in vars(args).items() if name in _DEFAULTS})


EngineArgs = dataclasses.make_dataclass(
    "EngineArgs",
    [
        (name, Any, dataclasses.field(default=default, kw_only=name != "model"))
        for name, default in sorted(_DEFAULTS.items())
    ],
    bases=(_Gathered,),
    namespace={"__doc__": "The options of `EngineConfig`, and vLLM's others, unchecked until they are used."},
)
AsyncEngineArgs = EngineArgs
"""The same under vLLM's name for `AsyncLLMEngine`."""
