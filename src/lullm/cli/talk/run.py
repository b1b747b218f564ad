"""`lullm run`: answers prompts on the terminal."""

import argparse
import sys
import time
from typing import Any

from lullm.cli.flag.engine import REPLY_OPTIONS, add_engine_flags
from lullm.cli.flag.model import split_model
from lullm.cli.flag.sampling import add_sampling_flags, opening, sampling_changes
from lullm.cli.flag.settings import add_config_flag
from lullm.cli.talk import chat
from lullm.cli.talk.partner import add_lora_flag, add_url_flags, open_terminal
from lullm.cli.talk.picture import PICTURES, add_picture_flags, picture_parts
from lullm.cli.talk.sound import (
    TranscriptOptions,
    add_sound_flags,
    check_for_answers,
    check_without_sound,
    read_sounds,
    sound_parts,
    transcript_options,
)
from lullm.cli.talk.terminal import Prompt, Summary, Terminal
from lullm.errors import ConfigError

STDIN = "-"

EXAMPLES = """\
examples:
  lullm run "What is 17 + 25?"                     the demo model answers
  lullm run Qwen/Qwen3-0.6B "Hello!" "Bye!"        a model of the hub answers two prompts
  lullm run model.gguf - < question.txt            the prompt is what stdin holds
  lullm run path/to/SmolVLM "What is this?" --image cat.png
  lullm run path/to/Qwen3-VL "What happens?" --video cat.mp4
  lullm run openai/whisper-small --audio talk.wav --response-format srt
  lullm run path/to/Qwen2-Audio "Who speaks?" --audio talk.wav
  lullm run --url http://127.0.0.1:8000 "Hello!"   a running server answers
  lullm run path/to/folder                         a conversation, as `lullm chat`"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm run`."""
    parser.usage = "lullm run [MODEL] PROMPT ... [FLAGS]"
    parser.description = (
        "Answer each prompt, printed as it is generated. A model with a chat template answers; "
        "others, and --raw, continue the text."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[MODEL] PROMPT",
        help="the model, a name without blanks (default: demo, or --model); then prompts, which are answered one after "
        "another; '-': what stdin holds. Without a prompt: stdin, or on a terminal a conversation",
    )
    parser.add_argument("--raw", action="store_true", help="continue the text: no chat template")
    parser.add_argument("--verbose", action="store_true", help="tokens per second on stderr, and the engine's log")
    add_config_flag(parser)
    add_sampling_flags(parser)
    add_picture_flags(parser)
    add_sound_flags(parser)
    add_lora_flag(parser)
    add_url_flags(parser)
    add_engine_flags(parser, without=chat.NOT_ENGINE)
    parser.set_defaults(run=run, not_engine=chat.NOT_ENGINE)


def run(args: argparse.Namespace) -> int:
    """Answer the prompts, or write down sounds. Raises LullmError."""
    if args.audio:
        return _hear(args)
    check_without_sound(args)
    if args.raw:
        _refuse_with_raw(args)
    prompts = split_model(args)
    if not prompts and sys.stdin is not None and sys.stdin.isatty():
        if args.raw:
            raise ConfigError("--raw needs a prompt")
        for name in PICTURES:
            if getattr(args, name):
                raise ConfigError(f"--{name} needs a prompt")
        return chat.talk(args)
    sampling_changes(args)  # report a wrong flag before reading
    pictures = picture_parts(args)
    prompts = [_stdin(args) if prompt == STDIN else prompt for prompt in prompts or [STDIN]]
    with open_terminal(args) as terminal:
        _answer_all(args, terminal, prompts, pictures)
    return 0


def _hear(args: argparse.Namespace) -> int:
    """Answer prompts about sounds, or write down what is said in them: the model decides."""
    if args.raw:
        raise ConfigError("--raw does not go with --audio; leave out one of them")
    prompts, changes = split_model(args), sampling_changes(args)
    prompts = [_stdin(args) if prompt == STDIN else prompt for prompt in prompts]
    sounds, pictures = read_sounds(args.audio), picture_parts(args)
    with open_terminal(args) as terminal:
        if terminal.partner.hears:
            check_for_answers(args)
            _answer_all(args, terminal, prompts or [""], [*pictures, *sound_parts(args.audio, sounds)])
        else:
            _listen(args, terminal, transcript_options(args, prompts, changes), sounds)
    return 0


def _listen(args: argparse.Namespace, terminal: Terminal, options: TranscriptOptions, sounds: list[bytes]) -> None:
    for number, (name, data) in enumerate(zip(args.audio, sounds, strict=True)):
        if len(sounds) > 1:
            print(f"{'' if number == 0 else chr(10)}> {name}", flush=True)
        summary = Summary(start_s=time.monotonic())
        said = ""
        for text in terminal.partner.transcript(data, options, summary):
            print(text, end="", flush=True)
            said = text or said
        if not said.endswith("\n"):
            print(flush=True)
        if args.verbose:
            print(summary, file=sys.stderr, flush=True)


def _refuse_with_raw(args: argparse.Namespace) -> None:
    """Raises ConfigError: a flag is only for conversations."""
    given = [name for name in ("system", *PICTURES, *sorted(REPLY_OPTIONS)) if getattr(args, name, None) is not None]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise ConfigError(f"{flags}: for conversations, and --raw continues a text; leave out one of them")


def _stdin(args: argparse.Namespace) -> str:
    text = "" if sys.stdin is None else sys.stdin.read().strip("\n")
    if text:
        return text
    if args.words:  # `lullm run Hello`: a single word is probably the prompt
        model = args.words[0]
        raise ConfigError(
            f"{model!r} is the model, there is no prompt, and stdin holds none; try: lullm run demo {model}"
        )
    raise ConfigError('there is no prompt, and stdin holds none; try: lullm run demo "What is 17 + 25?"')


def _answer_all(args: argparse.Namespace, terminal: Terminal, prompts: list[str], parts: list[dict[str, Any]]) -> None:
    """`parts`: pictures, videos and sounds before each prompt."""
    has_template = terminal.partner.has_template and not args.raw
    for name in ("system", *PICTURES, "audio"):
        if getattr(args, name) is not None and not has_template:
            raise ConfigError(f"--{name} needs a model with a chat template")
    for number, text in enumerate(prompts):
        if len(prompts) > 1:
            print(f"{'' if number == 0 else chr(10)}> {text}", flush=True)
        texts = [{"type": "text", "text": text}] if text else []
        content = [*parts, *texts] if parts else text
        prompt: Prompt = [*opening(args), {"role": "user", "content": content}] if has_template else text
        terminal.print_answer(prompt, sampling_changes(args))
        if args.verbose:
            print(terminal.summary, file=sys.stderr, flush=True)
