"""CommandParser: argparse with suggestions for misspelt words."""

import argparse
import difflib
import importlib
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from lullm.cli.flag import elsewhere

_WRONG_CHOICE = re.compile(r"argument (?P<name>\S+): invalid choice: '(?P<given>.*)' \(choose from (?P<known>.*)\)")


_ALL_HELP = "--help=all"
"""vLLM's; the help names all flags anyway."""

WORDS = "words"
"""Name of an argument whose words may come before, between and after flags."""


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of descriptions, and wraps those that are not indented."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines()
        return "\n".join(line if line[:1] == " " else textwrap.fill(line, width) for line in lines)


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command. `function` of `module` adds the description and flags to its parser."""

    name: str
    help: str
    module: str
    function: str = "add_flags"


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors suggest the intended word. Sub-commands' parsers are of this class, too."""

    _command: Command | None = None  # its flags are still to be added
    _source: str | None = None  # what `check` reads

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("formatter_class", _Formatter)
        kwargs.setdefault("allow_abbrev", False)  # an abbreviation of today is ambiguous with tomorrow's flags
        super().__init__(*args, **kwargs)

    def add_commands(self, dest: str, commands: Iterable[Command]) -> None:
        """Add sub-commands. A command's module is loaded with its flags: loading all takes 0.1 s."""
        parsers = self.add_subparsers(metavar="COMMAND", dest=dest, required=True)
        for command in commands:
            parsers.add_parser(command.name, help=command.help)._command = command

    def with_flags(self) -> "CommandParser":
        """The parser itself, once it has its flags. Idempotent."""
        command, self._command = self._command, None
        if command is not None:
            getattr(importlib.import_module(command.module), command.function)(self)
        return self

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """As argparse, but leftover words are an error here, where the flags of the sub-command are known."""
        self.with_flags()
        args = ["--help" if each == _ALL_HELP else each for each in (sys.argv[1:] if args is None else args)]
        has_commands = bool(sub_parsers(self))
        for name in _names(itertools.takewhile(_is_flag, args) if has_commands else args):
            if has_commands and name not in self._option_string_actions:
                self.error(f"a command comes before {name}; `{self.prog} --help` lists them")
            if name in elsewhere.FLAGS and name not in self._option_string_actions:
                self.error(f"there is no {name}: {elsewhere.FLAGS[name]}")
        parsed, rest = super().parse_known_args(args, namespace)
        if hasattr(parsed, WORDS):  # argparse takes them in one row only: `run MODEL --seed 3 PROMPT`
            while rest and not rest[0].startswith("-"):
                getattr(parsed, WORDS).append(rest.pop(0))
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{_suggestion(rest, self.shown_flags)}")
        return parsed, rest

    @property
    def shown_flags(self) -> list[str]:
        """The flags that the help names."""
        return [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]

    def _get_option_tuples(self, option_string):  # type: ignore[no-untyped-def]
        """No abbreviations: argparse accepts them for `-tp` and similar flags whatever `allow_abbrev` is."""
        found = super()._get_option_tuples(option_string)
        return [each for each in found if each[1] == option_string or not each[1].startswith(option_string)]

    def check(self, args: list[str], source: str) -> None:
        """End the program if `args`, from `source` instead of the command line, are wrong; name `source`."""
        self._source = source
        self.parse_args(args)
        self._source = None

    def error(self, message: str) -> NoReturn:
        """End the program with the usage, the message, and a suggestion."""
        wrong = _WRONG_CHOICE.match(message)
        if wrong:
            known = re.findall(r"'([^']*)'", wrong["known"])
            kind = "command" if wrong["name"] == "COMMAND" else wrong["name"]
            message = f"{kind}: there is no {wrong['given']!r}"
            if kind == "command" and wrong["given"] in elsewhere.COMMANDS:
                message += f": {elsewhere.COMMANDS[wrong['given']]}"
            else:
                message += _suggestion([wrong["given"]], known)
            if kind != "command":
                message += f" (choose from {', '.join(known)})"
                action = self._option_string_actions.get(wrong["name"].rpartition("/")[2])
                if advice := getattr(action, "advice", None):
                    message += f"; {advice}"
        super().error(message if self._source is None else f"{self._source}: {message}")


def sub_parsers(parser: argparse.ArgumentParser) -> dict[str, CommandParser]:
    """The parser of each sub-command, perhaps without its flags; empty: no sub-commands."""
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def with_sub_parsers(parser: CommandParser) -> Iterator[CommandParser]:
    """The parser itself, then those of its sub-commands and of theirs, with all flags."""
    yield parser.with_flags()
    for each in sub_parsers(parser).values():
        yield from with_sub_parsers(each)


def chosen(parser: CommandParser, argv: Sequence[str]) -> tuple[CommandParser, Sequence[str]]:
    """The parser of a command line's command, and the words after the command."""
    commands = sub_parsers(parser.with_flags())
    return chosen(commands[argv[0]], argv[1:]) if argv and argv[0] in commands else (parser, argv)


def closest(given: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `given` begins or probably misspells."""
    names = sorted(known, key=len)
    found = [name for name in names if name.startswith(given)] or difflib.get_close_matches(given, names, n=1)
    return found[0] if found else None


def _is_flag(word: str) -> bool:
    return word.startswith("-")


def _names(args: Iterable[str]) -> Iterator[str]:
    """The flags of a command line without their values: `-O` of `-O.level=3`. Words after `--` are no flags."""
    for each in args:
        if each == "--":
            return
        if _is_flag(each):
            yield each.partition("=")[0].partition(".")[0]


def _suggestion(given: Sequence[str], known: Iterable[str]) -> str:
    meant = [closest(each.partition("=")[0], known) for each in given if each.strip("-")]
    names = [name for name in dict.fromkeys(meant) if name is not None]
    return f"; did you mean {' or '.join(names)}?" if names else ""
