"""ItemStream: the events of a reply as OpenAI's output items, streamed, and the items that have ended."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lullm.server.openai.responses.tool import input_of
from lullm.server.openai.responses.translation import sealed
from lullm.text.reply.event import CallArguments, CallEnd, CallStart, ReplyEvent, Text, Thinking

Event = dict[str, Any]


class ItemStream:
    """One item is open at a time: it ends where a piece of another kind begins.

    Args:
        answer_id: items get their ids from it.
        calls: the model's name of a tool -> the fields of an item that calls it.
        seals: whether thoughts also come as `encrypted_content`.

    Attributes:
        items: those that have ended, in order.
    """

    def __init__(self, answer_id: str, calls: Mapping[str, dict[str, str]], seals: bool):
        self._answer_id = answer_id
        self._seals = seals
        self._calls = calls
        self._open: Event | None = None
        self._pieces: list[str] = []
        self._logprobs: list[Event] = []
        self.items: list[Event] = []

    def feed(self, events: Iterable[ReplyEvent], logprobs: list[Event]) -> Iterator[Event]:
        """The stream events for some events of a reply. `logprobs`: of their tokens; a text's own lie beside it."""
        for event in events:
            match event:
                case Text(text):
                    yield from self._ensure_open("message")
                    yield self._piece("output_text.delta", text) | {"logprobs": logprobs}
                    self._logprobs += logprobs
                    logprobs = []
                case Thinking(text):
                    yield from self._ensure_open("reasoning")
                    yield self._piece("reasoning_text.delta", text)
                case CallStart():
                    yield from self.close()
                    fields = self._calls.get(event.name, {"type": "function_call", "name": event.name})
                    said = "input" if fields["type"] == "custom_tool_call" else "arguments"
                    yield from self._begin(**fields, call_id=event.id, **{said: ""})
                case CallArguments(_, piece) if self._is_custom:
                    self._pieces.append(piece)  # the input is a string inside the JSON, so it is known only at its end
                case CallArguments(_, piece):
                    yield self._piece("function_call_arguments.delta", piece)
                case CallEnd():
                    yield from self.close()

    def close(self, status: str = "completed") -> Iterator[Event]:
        """End the open item. `status`: 'incomplete' if the reply's end has cut it."""
        if self._open is None:
            return
        item, text = self._open, "".join(self._pieces)
        if item["type"] == "function_call":
            yield self._at("function_call_arguments.done", arguments=text, name=item["name"])
            item = item | {"arguments": text}
        elif self._is_custom:
            given = input_of(text)
            yield self._at("custom_tool_call_input.delta", delta=given)
            yield self._at("custom_tool_call_input.done", input=given)
            item = item | {"input": given}
        else:
            part = self._part(item["type"], text)
            done = {"text": text} | ({"logprobs": self._logprobs} if item["type"] == "message" else {})
            yield self._at(f"{part['type']}.done", content_index=0, **done)
            yield self._at("content_part.done", content_index=0, part=part)
            item = item | {"content": [part]}
            if self._seals and item["type"] == "reasoning":
                item["encrypted_content"] = sealed(text)
        item["status"] = status
        yield {"type": "response.output_item.done", "output_index": len(self.items), "item": item}
        self.items.append(item)
        self._open, self._pieces, self._logprobs = None, [], []

    def _ensure_open(self, kind: str) -> Iterator[Event]:
        if self._open is not None and self._open["type"] == kind:
            return
        yield from self.close()
        fields: Event = {"role": "assistant"} if kind == "message" else {"summary": []}
        yield from self._begin(kind, **fields, content=[])
        yield self._at("content_part.added", content_index=0, part=self._part(kind, ""))

    @property
    def _is_custom(self) -> bool:
        return self._open is not None and self._open["type"] == "custom_tool_call"

    def _begin(self, type: str, **fields: Any) -> Iterator[Event]:
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}[type]
        item_id = f"{prefix}_{self._answer_id}_{len(self.items)}"
        self._open = {"id": item_id, "type": type, "status": "in_progress", **fields}
        yield {"type": "response.output_item.added", "output_index": len(self.items), "item": self._open}

    def _piece(self, name: str, text: str) -> Event:
        self._pieces.append(text)
        place = {} if name.startswith("function_call") else {"content_index": 0}
        return self._at(name, **place, delta=text)

    def _at(self, event: str, /, **fields: Any) -> Event:
        assert self._open is not None
        place = {"item_id": self._open["id"], "output_index": len(self.items)}
        return {"type": f"response.{event}"} | place | fields

    def _part(self, kind: str, text: str) -> Event:
        if kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}
