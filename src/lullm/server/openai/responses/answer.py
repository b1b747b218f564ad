"""ResponseAnswer: answers of POST /v1/responses."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lullm.server.error import ApiError
from lullm.server.openai.logprob import chat_logprobs
from lullm.server.openai.reply import Reply
from lullm.server.openai.responses.body import ResponsesBody
from lullm.server.openai.responses.item_stream import Event, ItemStream
from lullm.server.openai.responses.store import ResponseStore
from lullm.server.openai.responses.tool import called_as
from lullm.server.sse import EVENTS, encode, typed_event
from lullm.text.reply.event import ReplyEvent
from lullm.types.outputs import RequestOutput

_OPENINGS = ("created", "in_progress")


@dataclass(slots=True)
class ResponseAnswer:
    """A reply as one response, or as numbered events in OpenAI's order. It goes into `store` at its end."""

    reply: Reply
    body: ResponsesBody
    store: ResponseStore
    media_type: str = EVENTS
    _items: ItemStream = field(init=False)
    _num_events: int = 0

    def __post_init__(self) -> None:
        calls = called_as(self.body.tools or [])
        self._items = ItemStream(self.reply.generation.id.removeprefix("resp-"), calls, self.body.seals_thoughts)

    async def whole(self) -> list[bytes]:
        """The response."""
        events, output = await self.reply.whole()
        self._feed(events, output)
        return [self._stored(self._ended())]

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """The response's next events."""
        events = self._feed(self.reply.read(output), output)
        if self._num_events == 0:
            opening = self.begun()
            events = [{"type": f"response.{name}", "response": opening} for name in _OPENINGS] + events
        return self._sent(events)

    def end(self) -> bytes:
        """The last event."""
        response = self._ended()
        self._stored(response)
        return self._sent([{"type": f"response.{response['status']}", "response": response}])

    def failure(self, error: ApiError) -> bytes:
        """The event 'error', and the failed response."""
        problem = {"code": error.code, "message": error.message, "param": error.param}
        return self._sent([{"type": "error", **problem}, {"type": "response.failed", "response": self.failed(error)}])

    def begun(self) -> Event:
        """The response before its first output."""
        return self._response("in_progress", [])

    def failed(self, error: ApiError) -> Event:
        """The response that has failed so far."""
        failed = self._response("failed", self._items.items)
        failed["error"] = {"code": "server_error", "message": error.message}
        self._stored(failed)
        return failed

    def _stored(self, response: Event) -> bytes:
        """Store the response, if it is to be; returns its JSON."""
        return self.store.put(response, self.body) if self.store.stores(self.body) else encode(response)

    def _feed(self, events: list[ReplyEvent], output: RequestOutput) -> list[Event]:
        """The events of the items for those of an output."""
        found = list(self._items.feed(events, self._logprobs()))
        if output.finished:
            found += self._items.close("incomplete" if self._is_cut else "completed")
        return found

    @property
    def _is_cut(self) -> bool:
        return self.reply.completion.finish_reason == "length"

    def _logprobs(self) -> list[Event]:
        completion = self.reply.completion
        if not self.body.wants_logprobs or not completion.token_ids:
            return []
        tokenizer = self.reply.generation.context.engine.tokenizer
        num_top = self.body.top_logprobs or 0
        rows: list[Event] = chat_logprobs(tokenizer, completion.token_ids, completion.logprobs or [], num_top)[
            "content"
        ]
        return rows

    def _sent(self, events: Iterable[Event]) -> bytes:
        return b"".join(map(typed_event, self._numbered(events)))

    def _numbered(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            yield event | {"sequence_number": self._num_events}
            self._num_events += 1

    def _ended(self) -> Event:
        status = "incomplete" if self._is_cut else "completed"
        response = self._response(status, self._items.items) | {"usage": self._usage()}
        if self._is_cut:
            return response | {"incomplete_details": {"reason": "max_output_tokens"}}
        return response | {"completed_at": int(time.time())}

    def _response(self, status: str, output: list[Event]) -> Event:
        """The response, with the request's values, and the defaults of those that it left out."""
        body, generation = self.body, self.reply.generation
        params = generation.requests[0].params
        return {
            "id": generation.id,
            "object": "response",
            "created_at": generation.created,
            "status": status,
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": generation.model_name,
            "output": output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": body.reasoning.model_dump() if body.reasoning else {"effort": None, "summary": None},
            "store": self.store.stores(body),
            "temperature": params.temperature,
            "text": _text_config(body),
            "tool_choice": _tool_choice(body),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.reply.generation.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": self.reply.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reply.thinking_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }


def _text_config(body: ResponsesBody) -> dict[str, Any]:
    form = body.text.format if body.text else None
    return {"format": form.model_dump(by_alias=True, exclude_none=True) if form else {"type": "text"}}


def _tool_choice(body: ResponsesBody) -> Any:
    choice = body.tool_choice or "auto"
    return choice if isinstance(choice, str) else choice.model_dump()
