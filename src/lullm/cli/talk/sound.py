"""Sounds of the command line: files, and how they are written down."""

import argparse
import base64
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lullm.errors import ConfigError

FORMS = ("text", "json", "verbose_json", "srt", "vtt")
_FLAGS = ("language", "translate", "response_format", "word_times")
_NOT_WITH_SOUNDS = ("image", "video", "system", "lora", "stop")
"""Flags of answers: a model that writes down what it hears has none of them."""


@dataclass(frozen=True, slots=True)
class TranscriptOptions:
    """What to do with a sound. `earlier`: a text before it. `changes`: the sampling flags. `word_times`: of single
    words, too, in verbose_json.
    """

    language: str | None
    translate: bool
    response_format: str
    earlier: str | None
    changes: dict[str, Any]
    word_times: bool = False

    @property
    def granularities(self) -> tuple[str, ...]:
        """What is to have times, under OpenAI's names; empty: segments."""
        return ("segment", "word") if self.word_times else ()

    @property
    def task(self) -> str:
        """The model's word for it."""
        return "translate" if self.translate else "transcribe"


def add_sound_flags(parser: argparse.ArgumentParser) -> None:
    """Add --audio and what belongs to it."""
    group = parser.add_argument_group(
        "sounds",
        "For a model that hears (docs/audio.md). It answers the prompt. If it only writes down what is said, the "
        "prompt is an earlier text.",
    )
    group.add_argument(
        "--audio",
        metavar="FILE",
        action="append",
        help="hear it before each prompt, or write down what is said in it; may be given several times",
    )
    group.add_argument("--language", metavar="NAME", help="of the sound, such as en (default: the one that is heard)")
    group.add_argument("--translate", action="store_true", default=None, help="into English")
    group.add_argument("--response-format", choices=FORMS, help="srt, vtt and verbose_json say when (default: text)")
    group.add_argument(
        "--word-times", action="store_true", default=None, help="verbose_json also says when single words are said"
    )


def transcript_options(args: argparse.Namespace, prompts: list[str], changes: dict[str, Any]) -> TranscriptOptions:
    """What the flags ask for. Raises ConfigError: some do not go with a model that writes down what it hears."""
    if given := [name for name in _NOT_WITH_SOUNDS if getattr(args, name, None)]:
        raise ConfigError(f"--{given[0]} does not go with --audio: this model writes down what it hears; leave out one")
    if len(prompts) > 1:
        raise ConfigError(
            "--audio takes one prompt, since this model writes down what it hears: a text before the sound, with its "
            "names and its spelling"
        )
    if args.word_times and args.response_format != "verbose_json":
        raise ConfigError("--word-times needs --response-format verbose_json")
    earlier, form = prompts[0] if prompts else None, args.response_format or "text"
    return TranscriptOptions(args.language, bool(args.translate), form, earlier, changes, bool(args.word_times))


def check_without_sound(args: argparse.Namespace) -> None:
    """Raises ConfigError: a flag is for sounds, and there is none."""
    for name in _FLAGS:
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} is for a sound; name its file by --audio")


def check_for_answers(args: argparse.Namespace) -> None:
    """Raises ConfigError: a flag is for writing down what is said, and the model answers."""
    for name in _FLAGS:
        if getattr(args, name) is not None:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is for Whisper: this model answers a prompt about a sound; say it there")


def sound_parts(files: list[str], sounds: list[bytes]) -> list[dict[str, Any]]:
    """The parts of a message. `sounds`: the bytes of the files."""
    return [
        {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(data).decode(), "format": Path(file).suffix[1:].lower() or "wav"},
        }
        for file, data in zip(files, sounds, strict=True)
    ]


def read_sounds(files: list[str]) -> list[bytes]:
    """The bytes of the files. Raises ConfigError: one cannot be read."""
    found = []
    for file in files:
        try:
            found.append(Path(file).expanduser().read_bytes())
        except OSError as error:
            raise ConfigError(f"--audio: cannot read {file}: {error.strerror}") from None
    return found


def form_of(options: TranscriptOptions, model: str, data: bytes) -> tuple[str, bytes]:
    """(content type, body) of the form for a server's endpoint."""
    names = {"max_tokens": "max_completion_tokens"}
    fields = {"model": model, "response_format": options.response_format, "language": options.language}
    fields |= {"prompt": options.earlier} | {names.get(name, name): value for name, value in options.changes.items()}
    marker = uuid.uuid4().hex
    head = f"--{marker}\r\nContent-Disposition: form-data; name="
    pairs = [*fields.items(), *(("timestamp_granularities[]", kind) for kind in options.granularities)]
    parts = [f'{head}"{name}"\r\n\r\n{value}\r\n' for name, value in pairs if value is not None]
    parts.append(f'{head}"file"; filename="sound"\r\nContent-Type: application/octet-stream\r\n\r\n')
    return f"multipart/form-data; boundary={marker}", "".join(parts).encode() + data + f"\r\n--{marker}--\r\n".encode()
