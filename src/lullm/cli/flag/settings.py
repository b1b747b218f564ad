"""Settings: values from a file (`--config`) and `LULLM_...` variables, under the names of a command's flags.

The command line wins over the environment, and the environment over the file. The command's own parser reads all three,
so a value has one meaning and one error everywhere.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lullm.cli.flag.elsewhere import VARIABLES
from lullm.cli.flag.key import ADMIN_KEY_VARIABLE, API_KEY_VARIABLE
from lullm.cli.flag.model import MODEL_SETTING
from lullm.cli.flag.vllm import VllmFlag
from lullm.cli.parser import CommandParser, closest
from lullm.errors import ConfigError

PREFIX = "LULLM_"
READ_ELSEWHERE = frozenset({API_KEY_VARIABLE, ADMIN_KEY_VARIABLE, "LULLM_CPU_ISA", "LULLM_CPU_LIBRARY"})
"""Variables of other rooms."""
MAX_FILE_BYTES = 1 << 20
NAMED = "NAME=PATH"
"""The metavar of flags that name folders; in a file a mapping says it, too."""
_NOT_SETTINGS = frozenset({"--help", "--config"})
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--config`, and let the command take settings."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file with flags, such as `max-model-len: 4096`; variables like LULLM_MAX_MODEL_LEN win over it, and "
        "the command line over both",
    )
    parser.set_defaults(takes_settings=True)


def apply_settings(
    parser: CommandParser,
    argv: Sequence[str],
    environment: Mapping[str, str],
    all_flags: Callable[[], set[str]],
) -> None:
    """Make the settings the defaults of a command's parser.

    Args:
        argv: the command line after the command. all_flags: returns the flags of all commands; called for a variable
            that this command lacks.

    Raises:
        ConfigError: the file cannot be read, or has a name that is no flag. A wrong value ends the program with the
            command line's error, which names the source.
    """
    if not parser.get_default("takes_settings"):
        return
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config")
    path = finder.parse_known_args(list(argv))[0].config
    actions = {name: action for name, action in parser._option_string_actions.items() if name not in _NOT_SETTINGS}
    said: list[tuple[str, list[str]]] = []  # (source, words of a command line)
    if path is not None:
        found = read_mapping("--config", path, "lines like `max-model-len: 4096`")
        said += [(path, tokens(flag_of(name), value, actions, path)) for name, value in found.items()]
    for variable, text in sorted(environment.items()):
        name = flag_of(variable)
        if variable.startswith(PREFIX) and variable not in READ_ELSEWHERE:
            if name in actions:
                said.append((variable, tokens(name, _listed(text), actions, variable)))
            elif name not in (flags := all_flags()):
                meant = closest(name, flags)
                hint = "" if meant is None else f"; did you mean {variable_of(meant)}?"
                print(f"lullm: the variable {variable} sets nothing{hint}", file=sys.stderr)
    if others := sorted(variable for variable in environment if variable.startswith("VLLM_")):
        named = (f"{each} ({VARIABLES[each]} does)" if each in VARIABLES else each for each in others)
        print(f"lullm: variables of vLLM set nothing here: {', '.join(named)}", file=sys.stderr)
    # A setting is a default: it is set before the command line is read, which overrides it.
    for source, words in said:
        parser.check(words, source)
    bare = vars(parser.parse_args([]))
    given = vars(parser.parse_args([word for _, words in said for word in words]))
    changed = {name: value for name, value in given.items() if name not in bare or bare[name] != value}
    if "model" in changed:  # a MODEL on the command line must not meet another --model there
        changed[MODEL_SETTING] = changed.pop("model")
    parser.set_defaults(**changed)


def flag_of(name: str) -> str:
    """`LULLM_MAX_MODEL_LEN`, `max_model_len` and `max-model-len` -> `--max-model-len`."""
    return "--" + name.removeprefix(PREFIX).lower().replace("_", "-")


def variable_of(flag: str) -> str:
    """`--max-model-len` -> `LULLM_MAX_MODEL_LEN`."""
    return PREFIX + flag.strip("-").upper().replace("-", "_")


def read_mapping(flag: str, path: str, content: str) -> dict[str, Any]:
    """The mapping in the YAML file that `flag` names. Raises ConfigError: there is none.

    `content`: what belongs there.
    """
    import yaml  # with the first file only

    try:
        with Path(path).expanduser().open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{flag} {path} has more than {MAX_FILE_BYTES} bytes")
        data = yaml.safe_load(raw)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{flag} {path} cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise ConfigError(f"{flag} {path} must hold {content}")
    return data


def _listed(text: str) -> Any:
    """The list in a variable as JSON (`["a", "b"]`), or its text. A text like `[END]` is no such list."""
    if not text.startswith("["):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, list) else text


def tokens(flag: str, value: Any, actions: Mapping[str, argparse.Action], source: str) -> list[str]:
    """The words of a command line for a flag with a value of YAML or JSON. Raises ConfigError."""
    action = actions.get(flag)
    if isinstance(value, (dict, list)) and (isinstance(action, VllmFlag) or getattr(action, "metavar", "") == "JSON"):
        value = json.dumps(value, default=str)  # YAML has dates
    if getattr(action, "metavar", "") == NAMED:
        value = _named(value)
    if action is None:
        meant = closest(flag, (name for name in actions if actions[name].help != argparse.SUPPRESS))
        hint = "" if meant is None else f"; did you mean {meant.strip('-')}?"
        raise ConfigError(f"{source}: this command has no flag {flag}{hint}")
    if value is None:
        return []
    if action.nargs == 0:
        return _switch(flag, value, action, source)
    values = value if isinstance(value, list) else [value]
    takes_several = isinstance(action, argparse._AppendAction) or action.nargs == "+"
    if len(values) != 1 and not takes_several:
        raise ConfigError(f"{source}: {flag} takes one value, not a list")
    if any(isinstance(each, (dict, list, bool)) or each is None for each in values):
        raise ConfigError(f"{source}: {flag} takes a text or a number, not {value!r}")
    if action.nargs == "+":
        return [flag, *map(str, values)]
    return [f"{flag}={each}" for each in values]


def _named(value: Any) -> Any:
    """`{"sql": "/adapters/sql"}` as a list of NAME=PATH, and objects in a list as JSON."""
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return [f"{name}={path}" for name, path in value.items()]
    if isinstance(value, list):
        return [json.dumps(each, default=str) if isinstance(each, dict) else each for each in value]
    return value


def _switch(flag: str, value: Any, action: argparse.Action, source: str) -> list[str]:
    text = str(value).lower()
    if text not in _TRUE + _FALSE:
        raise ConfigError(f"{source}: {flag} is on or off, not {value!r}")
    negated = "--no-" + flag.removeprefix("--")
    if text in _TRUE:
        return [flag]
    return [negated] if negated in action.option_strings else []
