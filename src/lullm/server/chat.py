"""POST /v1/chat/completions."""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from lullm.errors import InvalidRequestError
from lullm.server.context import ServerContext
from lullm.server.generation import Generation, public_id
from lullm.server.logprob import chat_logprobs, prompt_logprobs
from lullm.server.prompt import check_len, tokenize_messages
from lullm.server.schema import ChatBody, parse_body
from lullm.server.sse import DONE, EventStream, event, until_disconnect
from lullm.server.validation import chat_params, check_keep_alive, check_num_sequences, check_priority
from lullm.types.outputs import CompletionOutput


def router(context: ServerContext) -> APIRouter:
    """The endpoint over `context`'s engine."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        body = parse_body(ChatBody, await request.body())
        context.check_model(body.model)
        params = chat_params(body, context.engine)
        priority = check_priority(body, context.engine)
        keep_alive = check_keep_alive(body, context.engine)
        check_num_sequences(1, params)
        try:
            prompt = await tokenize_messages(context.engine, body.messages)
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error), error.param or "messages") from None
        check_len(context.engine, prompt.token_ids, "messages")
        generation = Generation(context, [prompt], params, public_id("chatcmpl", request.headers), priority, keep_alive)
        answer = ChatAnswer(generation, body)
        if body.stream:
            return EventStream(answer.chunks(), context.api_error)
        return JSONResponse(await until_disconnect(request.receive, answer.whole()))

    return routes


@dataclass(slots=True)
class ChatAnswer:
    """Turns a generation's outputs into the wire form, whole or in chunks."""

    generation: Generation
    body: ChatBody

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        choices: list[dict[str, Any]] = []
        extra: dict[str, Any] = {}
        async with contextlib.aclosing(self.generation.outputs()) as outputs:
            async for _, output in outputs:
                if output.finished:
                    for completion in output.outputs:
                        message = {"role": "assistant", "content": completion.text, "refusal": None}
                        choices.append(self._choice(completion, "message", message))
                    if self.body.prompt_logprobs is not None:
                        extra["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        choices.sort(key=lambda choice: choice["index"])
        head = self.generation.head("chat.completion")
        return head | {"choices": choices, "usage": self.generation.usage.as_dict()} | extra

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events: per choice its role, its pieces of text, its end."""
        with_usage = bool(self.body.stream_options and self.body.stream_options.include_usage)
        head = self.generation.head("chat.completion.chunk")
        tail = {"usage": None} if with_usage else {}
        has_role: set[int] = set()
        async with contextlib.aclosing(self.generation.outputs()) as outputs:
            async for _, output in outputs:
                for completion in output.outputs:
                    if completion.index not in has_role:
                        has_role.add(completion.index)
                        delta = {"role": "assistant", "content": ""}
                        opening = CompletionOutput(completion.index, "", [])
                        yield event(head | {"choices": [self._choice(opening, "delta", delta)]} | tail)
                    delta = {"content": completion.text} if completion.text else {}
                    choice = self._choice(completion, "delta", delta)
                    if delta or choice["finish_reason"] or choice["logprobs"]:
                        yield event(head | {"choices": [choice]} | tail)
        if with_usage:
            yield event(head | {"choices": [], "usage": self.generation.usage.as_dict()})
        yield DONE

    def _choice(self, completion: CompletionOutput, name: str, content: dict[str, Any]) -> dict[str, Any]:
        logprobs = None
        if self.body.logprobs and completion.token_ids:
            tokenizer = self.generation.context.engine.tokenizer
            logprobs = chat_logprobs(
                tokenizer, completion.token_ids, completion.logprobs or [], self.body.top_logprobs or 0
            )
        choice = {
            "index": completion.index,
            name: content,
            "logprobs": logprobs,
            "finish_reason": completion.finish_reason,
        }
        if completion.finish_reason is not None:
            choice["stop_reason"] = completion.stop_reason
        return choice
