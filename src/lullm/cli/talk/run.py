"""`lullm run`: answer prompts on the terminal."""

import argparse
import sys

from lullm.cli.flag.engine import SLEEP_OPTIONS, add_engine_flags
from lullm.cli.flag.sampling import add_sampling_flags, opening, sampling_params
from lullm.cli.talk.terminal import Terminal, open_terminal
from lullm.errors import ConfigError
from lullm.types.request import Conversation

# Here --seed is the answer's, no client names the model, and no call could put the engine to sleep.
NOT_ENGINE = frozenset({"seed", "served_model_name", *SLEEP_OPTIONS})


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The sub-command and its flags."""
    parser = commands.add_parser(
        "run",
        help="answer prompts on the terminal",
        description="Answer each prompt, printed as it is generated. A model with a chat template answers; "
        "others, and --raw, continue the text.",
    )
    parser.add_argument("prompts", nargs="+", metavar="PROMPT", help="answered one after another")
    parser.add_argument("--raw", action="store_true", help="continue the text: no chat template")
    parser.add_argument("--verbose", action="store_true", help="tokens per second on stderr, and the engine's log")
    add_sampling_flags(parser)
    add_engine_flags(parser, without=NOT_ENGINE)
    parser.set_defaults(run=run, not_engine=NOT_ENGINE)


def run(args: argparse.Namespace) -> int:
    """Answer the prompts. Raises LullmError."""
    if args.raw and args.system is not None:
        raise ConfigError("--system needs a chat template; leave out --raw")
    with open_terminal(args) as terminal:
        _answer_all(args, terminal)
    return 0


def _answer_all(args: argparse.Namespace, terminal: Terminal) -> None:
    params = sampling_params(args, terminal.engine.default_params)
    has_template = terminal.engine.tokenizer.chat_template is not None and not args.raw
    if args.system is not None and not has_template:
        raise ConfigError("--system needs a model with a chat template")
    for number, text in enumerate(args.prompts):
        if len(args.prompts) > 1:
            print(f"{'' if number == 0 else chr(10)}> {text}", flush=True)
        prompt = Conversation([*opening(args), {"role": "user", "content": text}]) if has_template else text
        terminal.print_answer(prompt, params)
        if args.verbose:
            print(terminal.summary, file=sys.stderr, flush=True)
