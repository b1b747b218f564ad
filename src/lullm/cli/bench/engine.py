"""The engine that a measurement starts itself: its flags, and its config."""

import argparse
from collections.abc import Callable

from lullm.cli.bench.record import add_record_flags, check_record
from lullm.cli.flag.engine import CLIENT_OPTIONS, REPLY_OPTIONS, add_engine_flags, engine_config
from lullm.cli.flag.model import take_model
from lullm.cli.flag.settings import add_config_flag
from lullm.config.engine import EngineConfig

_NOT_ENGINE = CLIENT_OPTIONS | REPLY_OPTIONS


def add_measured_engine(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], has_picture: bool = False
) -> None:
    """Add the flags of the record, the settings and the engine, behind the measurement's own. `run`: the command."""
    add_record_flags(parser, has_picture)
    add_config_flag(parser)
    add_engine_flags(parser, without=_NOT_ENGINE)
    parser.set_defaults(run=run, not_engine=_NOT_ENGINE)


def measured_config(args: argparse.Namespace) -> EngineConfig:
    """The config of the engine. Raises ConfigError: a flag is wrong, or the record cannot be written."""
    check_record(args)
    take_model(args, args.positional_model)
    config = engine_config(args)
    args.model = config.model  # for the record
    return config
