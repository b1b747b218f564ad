"""Terminal: one engine in this process, one request at a time, its answer printed as it is generated."""

import argparse
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from lullm.cli.flag.engine import engine_config
from lullm.cli.flag.sampling import sampling_params
from lullm.engine.head_start import head_start
from lullm.engine.interrupt import deferred_interrupt
from lullm.errors import LullmError
from lullm.log import log_to_stderr
from lullm.types.outputs import RequestOutput
from lullm.types.request import Conversation, Prompt
from lullm.types.sampling_params import SamplingParams

if TYPE_CHECKING:
    from lullm.engine.llm_engine import LLMEngine


@dataclass(slots=True)
class Summary:
    """What `--verbose` tells of one answer. `start_s` and the others are times of `time.monotonic()`."""

    num_prompt_tokens: int = 0
    num_tokens: int = 0
    start_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0

    def __str__(self) -> str:
        if self.first_s is None:
            return f"{self.num_prompt_tokens} prompt tokens, nothing generated"
        line = (
            f"{self.num_prompt_tokens} prompt tokens, {self.num_tokens} new, "
            f"first after {self.first_s - self.start_s:.3f} s"
        )
        spent = self.last_s - self.first_s
        return line + (f", then {(self.num_tokens - 1) / spent:.1f} tokens/s" if spent > 0 else "")

    def count(self, output: RequestOutput) -> None:
        """Count in a delta that has just come."""
        self.num_prompt_tokens = len(output.prompt_token_ids)
        self.last_s = time.monotonic()
        num_new = sum(len(completion.token_ids) for completion in output.outputs)
        if num_new and self.first_s is None:
            self.first_s = self.last_s
        self.num_tokens += num_new


class Terminal:
    """Prints the answers of an engine that it steps itself."""

    def __init__(self, engine: "LLMEngine"):
        self.engine = engine
        self._num_requests = 0
        self.summary = Summary()
        self.text_so_far = ""

    def close(self) -> None:
        """Give the engine's memory back."""
        self.engine.shutdown()

    def print_answer(self, prompt: Prompt | Conversation, params: SamplingParams) -> None:
        """Print the answer piece by piece and end its line; it is `text_so_far` then. Blocks; `summary` has numbers.

        Raises:
            InvalidRequestError: the prompt can never be served. LullmError: the model's numbers are of no use.
            KeyboardInterrupt: Ctrl-C; the request is aborted first, `text_so_far` holds what was printed.
        """
        self.text_so_far = ""
        for piece in self._pieces(prompt, params):
            self.text_so_far += piece
            print(piece, end="", flush=True)
        if not self.text_so_far.endswith("\n"):
            print(flush=True)

    def _pieces(self, prompt: Prompt | Conversation, params: SamplingParams) -> Iterator[str]:
        request_id = f"terminal-{self._num_requests}"
        self._num_requests += 1
        self.summary = Summary(start_s=time.monotonic())
        self.engine.add_request(request_id, prompt, params)
        with deferred_interrupt() as interrupt:
            while self.engine.has_unfinished_requests():
                if interrupt.is_set():
                    self.engine.abort_request(request_id, wants_output=False)
                    break
                for output in cast(list[RequestOutput], self.engine.step()):  # it asks for text only
                    self.summary.count(output)
                    for completion in output.outputs:
                        if completion.text:
                            yield completion.text
                        if completion.finish_reason == "abort":
                            raise LullmError(f"the answer ends here: {completion.stop_reason}")


@contextlib.contextmanager
def open_terminal(args: argparse.Namespace) -> Iterator[Terminal]:
    """A terminal over the engine that the flags ask for, until the block ends. Raises LullmError."""
    config = engine_config(args)
    sampling_params(args, SamplingParams())
    log_to_stderr("INFO" if args.verbose else "WARNING")
    with head_start(config) as ahead:
        # Torch is loaded here: after the flags are known to be good.
        from lullm.engine.llm_engine import LLMEngine

        engine = LLMEngine(config, ahead=ahead)
    with contextlib.closing(Terminal(engine)) as terminal:
        yield terminal
