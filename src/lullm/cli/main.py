"""The command `lullm`: parses the flags. The sub-command that runs imports the heavy modules."""

import os
import sys
from collections.abc import Sequence

import lullm
from lullm.cli import completion, doctor, memory, run_batch, serve
from lullm.cli.bench import command as bench
from lullm.cli.flag.settings import apply_settings
from lullm.cli.flag.spelling import spelled_as_flags
from lullm.cli.model import hub, quantize
from lullm.cli.parser import CommandParser, chosen, with_sub_parsers
from lullm.cli.plan import command as plan
from lullm.cli.remote import ps, sleep, wake
from lullm.cli.talk import chat, run
from lullm.errors import LullmError

USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as in shells


EXAMPLES = """\
examples:
  lullm run "What is 17 + 25?"             the bundled demo model answers
  lullm run Qwen/Qwen3-0.6B "Hello!"       a model of the hub; or a folder, or a GGUF file
  lullm chat path/to/folder                a conversation
  lullm serve path/to/folder --port 8000   the OpenAI API over HTTP
  lullm doctor                             what this machine has, and what is missing"""


def build_parser() -> CommandParser:
    """The parser with all sub-commands."""
    parser = CommandParser(
        prog="lullm", description="An LLM inference engine with a paged KV cache that can sleep.", epilog=EXAMPLES
    )
    parser.add_argument("--version", action="version", version=f"lullm {lullm.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    served = (serve, run_batch, ps, sleep, wake, bench)
    for command in (run, chat, *served, hub, quantize, plan, memory, doctor, completion):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 2 for a user's mistake, 130 after Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        # A model may write characters that the terminal's encoding lacks.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser()
    if not argv:
        parser.print_help()
        return 0
    # OpenMP reads it when torch is loaded, later. Spinning threads starve each other beside other programs: next to one
    # busy process a 0.6B model decoded 1.1 tok/s with spinning threads and 2.4 tok/s with parked ones.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    flags = {name for each in with_sub_parsers(parser) for name in each._option_string_actions}
    try:
        apply_settings(*chosen(parser, argv), os.environ, flags)
        args = parser.parse_args(argv)
        code: int = args.run(args)
        if sys.stdout is not None:  # None: the parent process has closed it
            sys.stdout.flush()  # here, where its errors are handled
        return code
    except LullmError as error:
        print(f"lullm: error: {spelled_as_flags(str(error), flags)}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader has ended: `lullm run ... | head`
        return 0
    except OSError as error:  # such as a full disk behind `> file`
        _drop_output()
        print(f"lullm: error: {error}", file=sys.stderr)
        return USER_ERROR


def _drop_output() -> None:
    """Drop the buffered output, because Python would report the error again when it flushes at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
