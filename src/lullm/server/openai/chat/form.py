"""ChatForm: answers of POST /v1/chat/completions."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lullm.engine.client import EngineClient
from lullm.server.openai.chat.message import delta, message
from lullm.server.openai.generation import Usage
from lullm.server.openai.logprob import chat_logprobs, prompt_logprobs
from lullm.server.openai.schema import ChatBody
from lullm.text.reply.event import CallStart, ReplyEvent, ReplyReader, Thinking
from lullm.text.reply.reader import open_reader
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import CompletionOutput, RequestOutput
from lullm.types.request import GenerateRequest


@dataclass(slots=True)
class ChatForm:
    """The choices of a chat: a message, or per choice its role, its pieces, its end."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    body: ChatBody
    request: GenerateRequest
    tokenizer: Tokenizer
    _readers: dict[int, ReplyReader] = field(default_factory=dict)  # of the choices
    _calling: set[int] = field(default_factory=set)  # choices that have called a tool

    @classmethod
    async def open(cls, engine: EngineClient, body: ChatBody, requests: list[GenerateRequest]) -> "ChatForm":
        """The form of an answer to `body`."""
        [request] = requests
        return cls(body, request, engine.tokenizer)

    def choices(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for completion in output.outputs:
            said = message(self._events(completion))
            if self.body.echoed:
                said["content"] = self.body.echoed + (said["content"] or "")
            yield self._choice(completion, "message", said)

    def deltas(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for completion in output.outputs:
            if completion.index not in self._readers:
                opening = CompletionOutput(completion.index, "", [])
                yield self._choice(opening, "delta", {"role": "assistant", "content": self.body.echoed})
            said = delta(self._events(completion))
            choice = self._choice(completion, "delta", said)
            if said or choice["finish_reason"] or choice["logprobs"] or choice.get("token_ids"):
                yield choice

    def opening(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.request.prompt_token_ids} if self.body.return_token_ids else {}

    def extra(self, output: RequestOutput) -> dict[str, Any]:
        extra = self.opening()
        if self.body.prompt_logprobs is not None:
            extra["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        return extra

    def usage(self, counted: Usage) -> Usage:
        num_thinking = sum(reader.num_thinking_tokens for reader in self._readers.values())
        return dataclasses.replace(counted, reasoning_tokens=num_thinking)

    def _events(self, completion: CompletionOutput) -> list[ReplyEvent]:
        """The events of an output, whole or a delta."""
        reader = self._readers.get(completion.index)
        if reader is None:
            reader = self._readers[completion.index] = open_reader(self.request)
        events = reader.feed(completion.text, completion.token_ids)
        if completion.finish_reason is not None:
            events += reader.finish()
        if not self.body.include_reasoning:
            events = [event for event in events if not isinstance(event, Thinking)]
        if any(isinstance(event, CallStart) for event in events):
            self._calling.add(completion.index)
        return events

    def _choice(self, completion: CompletionOutput, name: str, content: dict[str, Any]) -> dict[str, Any]:
        logprobs = None
        if self.body.logprobs and completion.token_ids:
            num_top = self.request.params.logprobs or 0
            as_ids = bool(self.body.return_tokens_as_token_ids)
            logprobs = chat_logprobs(self.tokenizer, completion.token_ids, completion.logprobs or [], num_top, as_ids)
        finish_reason = completion.finish_reason
        if finish_reason == "stop" and completion.index in self._calling:
            finish_reason = "tool_calls"
        choice: dict[str, Any] = {
            "index": completion.index,
            name: content,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if self.body.return_token_ids:
            choice["token_ids"] = completion.token_ids
        if finish_reason is not None:
            choice["stop_reason"] = completion.stop_reason
        return choice
