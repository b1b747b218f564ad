"""The command `lullm`: parses the flags. A sub-command's module is imported for its flags, and imports heavy modules
only to run.
"""

import os
import sys
from collections.abc import Sequence

import lullm
from lullm.cli.flag.settings import apply_settings
from lullm.cli.flag.spelling import spelled_as_flags
from lullm.cli.parser import Command, CommandParser, chosen, with_sub_parsers
from lullm.errors import LullmError
from lullm.machine.memory import is_no_room

USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as in shells


EXAMPLES = """\
examples:
  lullm run "What is 17 + 25?"             the bundled demo model answers
  lullm run Qwen/Qwen3-0.6B "Hello!"       a model of the hub; or a folder, or a GGUF file
  lullm chat path/to/folder                a conversation
  lullm serve path/to/folder --port 8000   the OpenAI API over HTTP
  lullm doctor                             what this machine has, and what is missing"""


COMMANDS = (
    Command("run", "answer prompts on the terminal", "lullm.cli.talk.run"),
    Command("chat", "hold a conversation on the terminal", "lullm.cli.talk.chat"),
    Command(
        "serve", "serve a model over HTTP, to clients of OpenAI, Anthropic, Ollama and llama.cpp", "lullm.cli.serve"
    ),
    Command("run-batch", "answer a file of requests", "lullm.cli.run_batch"),
    Command("ps", "show what a running server is doing", "lullm.cli.remote.ps"),
    Command("sleep", "put a running server to sleep: it releases its memory", "lullm.cli.remote.sleep"),
    Command("wake", "wake a sleeping server", "lullm.cli.remote.wake"),
    Command("bench", "measure an engine, its start, or a server under load", "lullm.cli.bench.command"),
    Command("pull", "fetch a model from the hub", "lullm.cli.model.hub", "add_pull_flags"),
    Command("list", "list the models in the hub's cache", "lullm.cli.model.hub", "add_list_flags"),
    Command("show", "describe a model", "lullm.cli.model.hub", "add_show_flags"),
    Command("rm", "remove a model from the hub's cache", "lullm.cli.model.hub", "add_remove_flags"),
    Command("quantize", "write a quantized copy of a model folder", "lullm.cli.model.quantize"),
    Command(
        "plan",
        "say whether a model fits this machine, or several devices, before loading it",
        "lullm.cli.plan.command",
    ),
    Command("memory", "draw which request holds which KV block", "lullm.cli.memory"),
    Command("doctor", "show what this machine has and what lullm uses", "lullm.cli.doctor"),
    Command("completion", "print completion for a shell", "lullm.cli.completion"),
)


def build_parser() -> CommandParser:
    """The parser with all sub-commands. Each gets its flags when it is parsed."""
    parser = CommandParser(
        prog="lullm", description="An LLM inference engine with a paged KV cache that can sleep.", epilog=EXAMPLES
    )
    parser.add_argument("--version", action="version", version=f"lullm {lullm.__version__}")
    parser.add_commands("command", COMMANDS)
    return parser


def all_flags() -> set[str]:
    """The flags of all commands."""
    return {name for each in with_sub_parsers(build_parser()) for name in each._option_string_actions}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0, 2 for a user's mistake, 130 after Ctrl-C."""
    # OpenMP reads it later, when torch is loaded. Spinning threads starve each other beside other programs: next to one
    # busy process a 0.6B model decoded 1.1 tok/s with spinning threads and 2.4 tok/s with parked ones.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        _open_streams()
        argv = sys.argv[1:] if argv is None else list(argv)
        parser = build_parser()
        if not argv:
            parser.print_help()
            return 0
        _check_folder()
        apply_settings(*chosen(parser, argv), os.environ, all_flags)
        args = parser.parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()  # here, where its errors are handled
        return code
    except LullmError as error:
        print(f"lullm: error: {spelled_as_flags(str(error), all_flags())}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except (MemoryError, RuntimeError) as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # what Python makes of Ctrl-C in the body of a class
            return INTERRUPTED
        if not is_no_room(error):
            raise
        print(f"lullm: error: memory is short: {str(error) or 'no more can be had'}", file=sys.stderr)
        return USER_ERROR
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "lullm":
            raise
        print(f"lullm: error: a library cannot be loaded: {error}; `lullm doctor` says which", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:
        _drop_output()  # the reader has ended: `lullm run ... | head`
        return 0
    except OSError as error:  # such as a full disk behind `> file`
        _drop_output()
        print(f"lullm: error: {error}", file=sys.stderr)
        return USER_ERROR


def _check_folder() -> None:
    """Check that the current folder exists: oneMKL ends the process without it, and names another cause."""
    try:
        os.getcwd()
    except OSError as error:
        raise LullmError(f"the current folder cannot be used ({error.strerror}); change to another one") from None


def _open_streams() -> None:
    """Make the standard streams accept all characters, and read bytes that are no text; these are refused later."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The parent process has closed it: `lullm run ... 2>&-`.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    # A model may write characters that the terminal's encoding lacks.
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=errors)


def _drop_output() -> None:
    """Drop the buffered output, because Python would report the error again when it flushes at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
