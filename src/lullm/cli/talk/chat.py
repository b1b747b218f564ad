"""`lullm chat`: a conversation on the terminal."""

import argparse
import contextlib
import sys

from lullm.cli.flag.engine import CLIENT_OPTIONS, add_engine_flags
from lullm.cli.flag.model import add_model_argument, take_model
from lullm.cli.flag.sampling import add_sampling_flags
from lullm.cli.flag.settings import add_config_flag
from lullm.cli.talk.conversation import COMMANDS, Conversation
from lullm.cli.talk.partner import add_lora_flag, add_url_flags, open_terminal
from lullm.errors import ConfigError

# Here --seed is for the answer. A single request is neither preempted nor delayed for others.
NOT_ENGINE = CLIENT_OPTIONS | {"seed", "preemption_mode", "delay_factor"}
GREETING = "Talk to {model}. /help lists the commands; /exit or Ctrl-D ends, Ctrl-C stops an answer."
MULTILINE = '"""'

EXAMPLES = """\
examples:
  lullm chat                               with the demo model
  lullm chat Qwen/Qwen3-0.6B --temp 0.6    with a model of the hub
  lullm chat --url http://127.0.0.1:8000   with a running server"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm chat`."""
    parser.usage = "lullm chat [MODEL] [FLAGS]"
    parser.description = "A conversation with a model that has a chat template. Commands in it:\n" + "\n".join(
        f"  {name:<18}{meaning}" for name, meaning in COMMANDS.items()
    )
    parser.epilog = EXAMPLES
    add_model_argument(parser)
    parser.add_argument("--verbose", action="store_true", help="tokens per second on stderr, and the engine's log")
    add_config_flag(parser)
    add_sampling_flags(parser)
    add_lora_flag(parser)
    add_url_flags(parser)
    add_engine_flags(parser, without=NOT_ENGINE)
    parser.set_defaults(run=run, not_engine=NOT_ENGINE)


def run(args: argparse.Namespace) -> int:
    """Talk until the input ends. Raises LullmError."""
    take_model(args, args.positional_model)
    return talk(args)


def talk(args: argparse.Namespace) -> int:
    """Talk to the model that `args` names, until the input ends. Raises LullmError."""
    if sys.stdin is None:
        raise ConfigError("a conversation needs an input, and stdin is closed")
    with open_terminal(args) as terminal:
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):  # line editing and history for input(); not on every system
                import readline  # noqa: F401
        conversation = Conversation(args, terminal)
        conversation.check()
        print(GREETING.format(model=terminal.partner.name), file=sys.stderr)
        while not conversation.ended and (text := _read_text()) is not None:
            conversation.take(text)
    return 0


def _read_text() -> str | None:
    """The next line, stripped, or the lines between two lines of quotes; None at the end of the input."""
    line = _read_line("> ")
    if line is None or not line.startswith(MULTILINE):
        return line
    lines = [line.removeprefix(MULTILINE)]
    while not (len(lines) > 1 or lines[0]) or not lines[-1].endswith(MULTILINE):
        line = _read_line("... ")
        if line is None:
            break
        lines.append(line)
    return "\n".join(lines).removesuffix(MULTILINE).strip()


def _read_line(mark: str) -> str | None:
    """The next line, stripped. Ctrl-C here drops the line and does not end the program."""
    while True:
        try:
            return input(mark if sys.stdin.isatty() else "").strip()
        except EOFError:
            return None
        except KeyboardInterrupt:
            print(flush=True)
