"""Conversation: the turns of `lullm chat`, and the commands among them."""

import argparse
import sys
from typing import Any

from lullm.cli.flag.sampling import NAMES, opening, sampling_changes
from lullm.cli.parser import closest
from lullm.cli.talk.terminal import Terminal
from lullm.errors import EngineDeadError, InvalidRequestError, LullmError
from lullm.types.sampling_params import SamplingParams

COMMANDS = {
    "/help": "list the commands",
    "/reset": "forget the conversation",
    "/set NAME VALUE": f"change {', '.join(NAMES)} or system",
    "/set": "show what applies",
    "/stats": "show each answer's tokens and speed, or no longer",
    "/exit": "end; Ctrl-D, too",
    '"""': "begins and ends a message of several lines",
}
"""Command -> its description."""


_OLLAMAS = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}


class Conversation:
    """The turns so far, and the sampling parameters of the next answer.

    Args:
        args: of the command line: the system message, the sampling flags and --verbose.
    """

    def __init__(self, args: argparse.Namespace, terminal: Terminal):
        self.ended = False
        self._terminal = terminal
        self._opening = opening(args)
        self._changes = sampling_changes(args)
        self._shows_stats = bool(args.verbose)
        self._messages = list(self._opening)

    def check(self) -> None:
        """Check that the model can hold a conversation. Raises LullmError: it only pools, has no template, or refuses
        the opening.
        """
        self._terminal.partner.check_chat([*self._opening, {"role": "user", "content": "hello"}])

    def take(self, text: str) -> None:
        """Run a command, or answer a text; ignore an empty text."""
        if not text.startswith("/"):
            if text:
                self._answer(text)
            return
        command, _, rest = text.partition(" ")
        if command in ("/exit", "/bye"):  # as elsewhere: Ollama's, and llama.cpp's
            self.ended = True
        elif command in ("/reset", "/clear"):
            self._messages = list(self._opening)
        elif command == "/stats":
            self._shows_stats = not self._shows_stats
            _tell(f"statistics are {'shown' if self._shows_stats else 'not shown'}")
        elif command == "/set":
            self._set(rest)
        elif command in ("/help", "/?"):
            for name, meaning in COMMANDS.items():
                _tell(f"  {name:<18}{meaning}")
        else:
            known = [name.partition(" ")[0] for name in COMMANDS]
            _tell(f"no command {command}; there are {', '.join(dict.fromkeys(known))}")

    def _answer(self, text: str) -> None:
        """Answer; both turns join the history. A stopped answer counts up to its stop."""
        self._messages.append({"role": "user", "content": text})
        try:
            self._terminal.print_answer(self._messages, self._changes)
        except KeyboardInterrupt:
            print(flush=True)
        except LullmError as error:  # most likely the conversation grew too long, or a server is busy or asleep
            self._messages.pop()
            is_first = self._messages == self._opening
            if isinstance(error, EngineDeadError) or (is_first and not isinstance(error, InvalidRequestError)):
                raise
            _tell(f"lullm: {error} (/reset begins anew)")
            return
        self._messages.append({"role": "assistant", "content": self._terminal.text_so_far})
        if self._shows_stats:
            _tell(str(self._terminal.summary))

    def _set(self, rest: str) -> None:
        name, _, text = rest.strip().removeprefix("parameter ").lstrip().partition(" ")  # Ollama's word
        name, text = name.replace("-", "_"), text.strip()
        if not name:
            shown = self._terminal.partner.defaults | self._changes
            shown |= {turn["role"]: turn["content"] for turn in self._opening}
            _tell("\n".join(f"  {key} {value}" for key, value in shown.items()))
        elif name == "system":
            # The history stays: only the opening before it changes.
            self._messages = self._messages[len(self._opening) :]
            self._opening = [{"role": "system", "content": text}] if text else []
            self._messages = [*self._opening, *self._messages]
        elif name not in NAMES:
            meant = _OLLAMAS.get(name) or closest(name, [*NAMES, "system"])
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join([*NAMES, 'system'])}"
            _tell(f"no setting {name!r}; {hint}")
        else:
            self._change(name, text)

    def _change(self, name: str, text: str) -> None:
        changes = {key: value for key, value in self._changes.items() if key != name}
        try:
            if text:  # without a value: the default again
                changes[name] = _value(name, text)
            SamplingParams(**changes)
        except InvalidRequestError as error:
            _tell(f"lullm: {error}")
            return
        self._changes = changes


def _value(name: str, text: str) -> Any:
    if name == "stop":
        return [text]
    kind, called = (int, "a whole number") if name in ("max_tokens", "top_k", "seed") else (float, "a number")
    try:
        return kind(text)
    except ValueError:
        raise InvalidRequestError(f"{name} takes {called}, not {text!r}", name) from None


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
