"""POST /v1/completions."""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lullm.server.context import ServerContext
from lullm.server.generation import Generation, public_id
from lullm.server.logprob import completion_logprobs, prompt_logprobs
from lullm.server.prompt import detokenize, tokenize_prompts
from lullm.server.schema import CompletionBody, parse_body
from lullm.server.sse import DONE, EventStream, event, until_disconnect
from lullm.server.validation import (
    check_keep_alive,
    check_num_sequences,
    check_priority,
    completion_params,
    is_echo_only,
)
from lullm.types.outputs import CompletionOutput, PositionLogprobs, RequestOutput

KIND = "text_completion"


def router(context: ServerContext) -> APIRouter:
    """The endpoint over `context`'s engine."""
    routes = APIRouter()

    @routes.post("/v1/completions")
    async def create_completion(request: Request) -> Response:
        body = parse_body(CompletionBody, await request.body())
        context.check_model(body.model)
        params = completion_params(body, context.engine)
        priority = check_priority(body, context.engine)
        keep_alive = check_keep_alive(body, context.engine)
        num_prompts = len(body.prompt) if isinstance(body.prompt, list) and not isinstance(body.prompt[0], int) else 1
        check_num_sequences(num_prompts, params)
        prompts = await tokenize_prompts(context.engine, body.prompt)
        generation = Generation(context, prompts, params, public_id("cmpl", request.headers), priority, keep_alive)
        echoes = [
            prompt.text if prompt.text is not None else await detokenize(context.engine, prompt.token_ids)
            for prompt in (prompts if body.echo else [])
        ]
        answer = CompletionAnswer(generation, body, echoes)
        if body.stream:
            return EventStream(answer.chunks(), context.api_error)
        return JSONResponse(await until_disconnect(request.receive, answer.whole()))

    return routes


@dataclass(slots=True)
class CompletionAnswer:
    """Turns a generation's outputs into the wire form, whole or in chunks. `echoes`: prompt texts, or empty."""

    generation: Generation
    body: CompletionBody
    echoes: list[str]

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices: list[dict[str, Any]] = []
        async with contextlib.aclosing(self.generation.outputs()) as outputs:
            async for number, output in outputs:
                if output.finished:
                    for completion in output.outputs:
                        choice, _ = self._choice(number, output, completion, None)
                        if self.body.prompt_logprobs is not None:
                            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
                        choices.append(choice)
        choices.sort(key=lambda choice: choice["index"])
        return self.generation.head(KIND) | {"choices": choices, "usage": self._usage()}

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        with_usage = bool(self.body.stream_options and self.body.stream_options.include_usage)
        head = self.generation.head(KIND)
        offsets: dict[int, int] = {}  # choice -> characters of its tokens so far
        prompt_rows: dict[int, list[PositionLogprobs | None]] = {}
        async with contextlib.aclosing(self.generation.outputs()) as outputs:
            async for number, output in outputs:
                if output.prompt_logprobs is not None:
                    prompt_rows[number] = output.prompt_logprobs
                output.prompt_logprobs = prompt_rows.get(number)
                for completion in output.outputs:
                    index = self._index(number, completion)
                    choice, offset = self._choice(number, output, completion, offsets.get(index))
                    if choice["text"] or choice["finish_reason"] or choice["logprobs"]:
                        offsets[index] = offset
                        yield event(head | {"choices": [choice]} | ({"usage": None} if with_usage else {}))
        if with_usage:
            yield event(head | {"choices": [], "usage": self._usage()})
        yield DONE

    def _usage(self) -> dict[str, Any]:
        if is_echo_only(self.body):
            self.generation.usage.completion_tokens = 0
        return self.generation.usage.as_dict()

    def _index(self, number: int, completion: CompletionOutput) -> int:
        return number * self.generation.params.n + completion.index

    def _choice(
        self, number: int, output: RequestOutput, completion: CompletionOutput, offset: int | None
    ) -> tuple[dict[str, Any], int]:
        """One choice of this output, and the offset behind its tokens; `offset` None: it is the choice's first."""
        text, token_ids = completion.text, completion.token_ids
        rows: list[PositionLogprobs | None] = list(completion.logprobs or [])
        finish_reason = completion.finish_reason
        if is_echo_only(self.body):
            text, token_ids, rows, finish_reason = "", [], [], finish_reason and "length"
        if offset is None:
            offset = 0
            if self.echoes:
                text = self.echoes[number] + text
                token_ids = self.generation.prompts[number].token_ids + token_ids
                rows = (output.prompt_logprobs or []) + rows
        logprobs = None
        if self.body.logprobs is not None and token_ids:
            tokenizer = self.generation.context.engine.tokenizer
            logprobs = completion_logprobs(tokenizer, token_ids, rows, self.body.logprobs, offset)
            # By tokens, not by text: the end of the text may be held back for a stop string.
            offset = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
        choice = {
            "index": self._index(number, completion),
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if finish_reason is not None:
            choice["stop_reason"] = completion.stop_reason
        return choice, offset
