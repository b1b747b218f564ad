"""CompletionForm: answers of POST /v1/completions."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lullm.engine.client import EngineClient
from lullm.server.openai.generation import Usage
from lullm.server.openai.logprob import completion_logprobs, prompt_logprobs
from lullm.server.openai.schema import CompletionBody
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import CompletionOutput, PositionLogprobs, RequestOutput
from lullm.types.request import GenerateRequest
from lullm.types.vision.tile import without_given

PromptRows = Sequence[PositionLogprobs | None]


@dataclass(slots=True)
class CompletionForm:
    """The choices of a completion: text, log-probabilities by position, the prompt echoed on demand.

    `echoes`: the prompts' texts, or empty. A stream's state is kept by prompt and by choice.
    """

    object_name = chunk_name = "text_completion"

    body: CompletionBody
    requests: list[GenerateRequest]
    tokenizer: Tokenizer
    echoes: list[str]
    is_echo_only: bool
    _prompt_rows: dict[int, PromptRows] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)  # choice -> characters of its tokens so far

    @classmethod
    async def open(
        cls, engine: EngineClient, body: CompletionBody, requests: list[GenerateRequest]
    ) -> "CompletionForm":
        """The form of an answer to `body`, whose prompts are `requests`."""
        echoes = [
            await engine.detokenize(without_given(request.prompt_token_ids, request.tiles))
            if request.prompt is None or body.truncate_prompt_tokens is not None
            else request.prompt
            for request in (requests if body.echo else [])
        ]
        return cls(body, requests, engine.tokenizer, echoes, body.is_echo_only)

    def choices(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for completion in output.outputs:
            choice, _ = self._choice(number, self._index(number, completion), completion, output.prompt_logprobs, None)
            if self.body.prompt_logprobs is not None:
                choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
            yield choice

    def deltas(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        if output.prompt_logprobs is not None:  # once; every choice of the prompt begins with them
            self._prompt_rows[number] = output.prompt_logprobs
        for completion in output.outputs:
            index = self._index(number, completion)
            prompt_rows, offset = self._prompt_rows.get(number), self._offsets.get(index)
            choice, offset = self._choice(number, index, completion, prompt_rows, offset)
            if choice["text"] or choice["finish_reason"] or choice["logprobs"] or choice.get("token_ids"):
                self._offsets[index] = offset
                yield choice

    def opening(self) -> dict[str, Any]:
        return {}

    def extra(self, output: RequestOutput) -> dict[str, Any]:
        return {}

    def usage(self, counted: Usage) -> Usage:
        return dataclasses.replace(counted, completion_tokens=0) if self.is_echo_only else counted

    def _index(self, number: int, completion: CompletionOutput) -> int:
        return number * self.requests[number].params.n + completion.index

    def _choice(
        self,
        number: int,
        index: int,
        completion: CompletionOutput,
        prompt_rows: PromptRows | None,
        offset: int | None,
    ) -> tuple[dict[str, Any], int]:
        """One choice, and the offset behind its tokens; `offset` None: it is the choice's first."""
        text, token_ids = completion.text, completion.token_ids
        request, is_first = self.requests[number], offset is None
        rows: Iterable[PositionLogprobs | None] = completion.logprobs or ()
        finish_reason = completion.finish_reason
        if self.is_echo_only:
            text, token_ids, rows, finish_reason = "", [], (), finish_reason and "length"
        if offset is None:
            offset = 0
            if self.echoes:
                text = self.echoes[number] + text
                token_ids = without_given(request.prompt_token_ids, request.tiles) + token_ids
                rows = itertools.chain(prompt_rows or (), rows)
        logprobs = None
        if self.body.logprobs is not None and token_ids:
            num_top, as_ids = request.params.logprobs or 0, bool(self.body.return_tokens_as_token_ids)
            # The offset goes by tokens, not by text: the end of the text may be held back for a stop string.
            logprobs, offset = completion_logprobs(self.tokenizer, token_ids, rows, num_top, offset, as_ids)
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if self.body.return_token_ids:
            choice["token_ids"] = [] if self.is_echo_only else completion.token_ids
            if is_first:
                choice["prompt_token_ids"] = request.prompt_token_ids
        if finish_reason is not None:
            choice["stop_reason"] = completion.stop_reason
        return choice, offset
