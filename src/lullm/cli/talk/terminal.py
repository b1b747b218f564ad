"""Terminal: one request at a time, its answer printed as it is generated."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lullm.cli.talk.sound import TranscriptOptions
from lullm.text.reply.event import Text, Thinking
from lullm.types.outputs import RequestOutput

_PALE = ("\033[2m", "\033[22m")
Messages = Sequence[dict[str, Any]]
Prompt = str | Messages
"""A text that is continued, or a conversation that is answered."""


@dataclass(slots=True)
class Summary:
    """The figures of one answer for `--verbose`. `start_s` and the others are times of `time.monotonic()`."""

    num_prompt_tokens: int = 0
    num_tokens: int = 0
    start_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    is_cut: bool = False

    def __str__(self) -> str:
        if self.first_s is None:
            return f"{self.num_prompt_tokens} prompt tokens, nothing generated"
        line = (
            f"{self.num_prompt_tokens} prompt tokens, {self.num_tokens} new, "
            f"first after {self.first_s - self.start_s:.3f} s"
        )
        spent = self.last_s - self.first_s
        return line + (f", then {(self.num_tokens - 1) / spent:.1f} tokens/s" if spent > 0 else "")

    def add(self, output: RequestOutput) -> None:
        """Count a step's output."""
        num_new = sum(len(completion.token_ids) for completion in output.outputs)
        self.num_prompt_tokens = len(output.prompt_token_ids)
        self.num_tokens += num_new
        self.is_cut = any(completion.finish_reason == "length" for completion in output.outputs)
        self.tick(num_new > 0)

    def tick(self, has_news: bool) -> None:
        """Note the time of a new piece of the answer."""
        self.last_s = time.monotonic()
        if has_news and self.first_s is None:
            self.first_s = self.last_s


class Partner(Protocol):
    """The source of answers: an engine in this process, or a server. `defaults`: its default sampling parameters."""

    name: str
    defaults: dict[str, Any]

    @property
    def has_template(self) -> bool:
        """Whether it answers conversations; without a template it only continues texts."""
        ...

    @property
    def hears(self) -> bool:
        """Whether conversations may have sounds; otherwise `transcript` may write them down."""
        ...

    def check_chat(self, messages: Messages) -> None:
        """Check that a conversation can begin with `messages`. Raises LullmError."""
        ...

    def transcript(self, data: bytes, options: TranscriptOptions, summary: Summary) -> Iterator[str]:
        """What is said in a file with a sound, piece by piece. Raises as `pieces` does."""
        ...

    def pieces(self, prompt: Prompt, changes: dict[str, Any], summary: Summary) -> Iterator[Text | Thinking]:
        """The answer with its thoughts, piece by piece. Closing the iterator aborts it.

        Args:
            changes: of the default sampling parameters. summary: filled on the way.

        Raises:
            InvalidRequestError: the prompt can never be served. LullmError: the answer failed.
            KeyboardInterrupt: Ctrl-C; the request has been aborted.
        """
        ...


class Terminal:
    """Prints the answers of a partner."""

    def __init__(self, partner: Partner):
        self.partner = partner
        self.summary = Summary()
        self.text_so_far = ""

    def print_answer(self, prompt: Prompt, changes: dict[str, Any]) -> None:
        """Print the answer piece by piece and end its line. Afterwards `text_so_far` is the answer, `summary` its
        figures. Blocks.

        Thoughts go to stderr, pale on a terminal, so that a pipe gets only the answer. A note about a default limit
        that ended the answer goes there, too. Raises as `Partner.pieces` does; `text_so_far` holds what was printed.
        """
        self.text_so_far = ""
        self.summary = Summary(start_s=time.monotonic())
        is_thinking, (pale, normal) = False, _PALE if sys.stderr.isatty() else ("", "")
        for piece in self.partner.pieces(prompt, changes, self.summary):
            if isinstance(piece, Thinking):
                is_thinking = True
                print(f"{pale}{piece.text}{normal}", end="", file=sys.stderr, flush=True)
                continue
            if is_thinking:
                is_thinking = False
                print("\n", file=sys.stderr, flush=True)
            self.text_so_far += piece.text
            print(piece.text, end="", flush=True)
        if not self.text_so_far.endswith("\n"):
            print(flush=True)
        if self.summary.is_cut and "max_tokens" not in changes:
            cause = "--max-tokens gives more" if isinstance(prompt, str) else "the model's length is full"
            print(f"lullm: cut after {self.summary.num_tokens} tokens: {cause}", file=sys.stderr, flush=True)
