"""The model of a command: MODEL as its first word, or --model, or the settings', or the demo model."""

import argparse
import os
import re

from lullm.errors import ConfigError

MODEL_SETTING = "model_of_settings"
_NAME = re.compile(r"[\w.~-]*(/[\w.-]+)*(:[\w.-]+)?")  # a path or a hub id, perhaps with a quantization: no blanks


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add `[MODEL]`."""
    parser.add_argument(
        "positional_model",
        nargs="?",
        metavar="MODEL",
        help="local folder, GGUF file, hub id, or 'demo' for the bundled model (default: demo)",
    )


def take_model(args: argparse.Namespace, name: str | None) -> None:
    """Set `args.model` from a name on the command line, or from the settings.

    Raises:
        ConfigError: --model names another one.
    """
    flag = getattr(args, "model", None)
    if name is not None and flag is not None and name != flag:
        raise ConfigError(f"two models: {name} and --model {flag}; leave out one of them")
    chosen = name or flag or getattr(args, MODEL_SETTING, None)
    if chosen is not None:
        args.model = chosen


def split_model(args: argparse.Namespace) -> list[str]:
    """The prompts among `args.words`. The first word is the model's name, unless --model is given.

    A sentence is no model's name: then all words are prompts, for the settings' or the default model.
    """
    words: list[str] = args.words
    has_name = bool(words) and not hasattr(args, "model") and is_model_name(words[0])
    take_model(args, words[0] if has_name else None)
    return words[1:] if has_name else words


def is_model_name(word: str) -> bool:
    """Whether a word can name a model: an existing path, or the form of a path or a hub id."""
    # os.path, since `Path.exists` raises if a prompt is longer than a file's name, or the folder is not readable.
    return word != "-" and bool(word) and (bool(_NAME.fullmatch(word)) or os.path.exists(os.path.expanduser(word)))
