"""`lullm chat`: a conversation on the terminal."""

import argparse
import contextlib
import sys

from lullm.cli.flag.engine import add_engine_flags
from lullm.cli.flag.sampling import add_sampling_flags, opening, sampling_params
from lullm.cli.talk.run import NOT_ENGINE
from lullm.cli.talk.terminal import Terminal, open_terminal
from lullm.engine.pooling.rules import check_generates
from lullm.errors import ConfigError, InvalidRequestError
from lullm.types.request import Conversation
from lullm.types.sampling_params import SamplingParams

GREETING = "Talk to {model}. /reset forgets the conversation, /exit or Ctrl-D ends, Ctrl-C stops an answer."


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The sub-command and its flags."""
    parser = commands.add_parser(
        "chat",
        help="hold a conversation on the terminal",
        description="A conversation with a model that has a chat template. " + GREETING.partition(". ")[2],
    )
    parser.add_argument("--verbose", action="store_true", help="tokens per second on stderr, and the engine's log")
    add_sampling_flags(parser)
    add_engine_flags(parser, without=NOT_ENGINE)
    parser.set_defaults(run=run, not_engine=NOT_ENGINE)


def run(args: argparse.Namespace) -> int:
    """Talk until the input ends. Raises LullmError."""
    if sys.stdin is None:
        raise ConfigError("a conversation needs an input, and stdin is closed")
    with open_terminal(args) as terminal:
        _talk(args, terminal)
    return 0


def _talk(args: argparse.Namespace, terminal: Terminal) -> None:
    params = sampling_params(args, terminal.engine.default_params)
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):  # line editing and history for input(); not on every system
            import readline  # noqa: F401
    history = opening(args)
    # A model that only pools, has no template, or refuses the system message: said before the first line.
    check_generates(terminal.engine.model_config)
    terminal.engine.input_processor.tokenize(Conversation([*history, {"role": "user", "content": "hello"}]))
    print(GREETING.format(model=terminal.engine.config.served_model_name), file=sys.stderr)
    while (line := _read_line()) is not None:
        if line == "/exit":
            break
        if line == "/reset":
            history = opening(args)
        elif line.startswith("/"):
            print(f"no command {line.split()[0]}; there are /reset and /exit", file=sys.stderr)
        elif line:
            _take_turn(args, terminal, history, line, params)


def _take_turn(
    args: argparse.Namespace, terminal: Terminal, history: list[dict[str, str]], line: str, params: SamplingParams
) -> None:
    """Answer `line`; both turns join the history. A stopped answer counts as far as it came."""
    history.append({"role": "user", "content": line})
    try:
        terminal.print_answer(Conversation(history), params)
    except KeyboardInterrupt:
        print(flush=True)
    except InvalidRequestError as error:  # most likely the conversation grew too long
        history.pop()
        print(f"lullm: {error} (/reset begins anew)", file=sys.stderr)
        return
    history.append({"role": "assistant", "content": terminal.text_so_far})
    if args.verbose:
        print(terminal.summary, file=sys.stderr, flush=True)


def _read_line() -> str | None:
    """The next line without its blanks; None at the end of the input. Ctrl-C here drops the line, not the program."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            print(flush=True)
