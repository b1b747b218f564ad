"""ChatForm: answers of POST /v1/chat/completions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lullm.engine.client import EngineClient
from lullm.server.openai.generation import Usage
from lullm.server.openai.logprob import chat_logprobs, prompt_logprobs
from lullm.server.openai.schema import ChatBody
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import CompletionOutput, RequestOutput
from lullm.types.request import GenerateRequest


@dataclass(slots=True)
class ChatForm:
    """The choices of a chat: a message, or per choice its role, its pieces of text, its end."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    body: ChatBody
    tokenizer: Tokenizer
    _have_role: set[int] = field(default_factory=set)

    @classmethod
    async def open(cls, engine: EngineClient, body: ChatBody, requests: list[GenerateRequest]) -> "ChatForm":
        """The form of an answer to `body`."""
        return cls(body, engine.tokenizer)

    def choices(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for completion in output.outputs:
            yield self._choice(
                completion, "message", {"role": "assistant", "content": completion.text, "refusal": None}
            )

    def deltas(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        for completion in output.outputs:
            if completion.index not in self._have_role:
                self._have_role.add(completion.index)
                opening = CompletionOutput(completion.index, "", [])
                yield self._choice(opening, "delta", {"role": "assistant", "content": ""})
            delta = {"content": completion.text} if completion.text else {}
            choice = self._choice(completion, "delta", delta)
            if delta or choice["finish_reason"] or choice["logprobs"]:
                yield choice

    def extra(self, output: RequestOutput) -> dict[str, Any]:
        if self.body.prompt_logprobs is None:
            return {}
        return {"prompt_logprobs": prompt_logprobs(output.prompt_logprobs)}

    def usage(self, counted: Usage) -> Usage:
        return counted

    def _choice(self, completion: CompletionOutput, name: str, content: dict[str, Any]) -> dict[str, Any]:
        logprobs = None
        if self.body.logprobs and completion.token_ids:
            num_top = self.body.top_logprobs or 0
            logprobs = chat_logprobs(self.tokenizer, completion.token_ids, completion.logprobs or [], num_top)
        choice = {
            "index": completion.index,
            name: content,
            "logprobs": logprobs,
            "finish_reason": completion.finish_reason,
        }
        if completion.finish_reason is not None:
            choice["stop_reason"] = completion.stop_reason
        return choice
