"""OpenAI's messages: a reply as a whole one, or its events as deltas."""

from collections.abc import Iterable
from typing import Any

from lullm.text.reply.event import CallArguments, CallStart, ReplyEvent, Text, Thinking
from lullm.text.reply.whole import joined


def message(events: Iterable[ReplyEvent]) -> dict[str, Any]:
    """The assistant's message. `content` is null if it only calls tools.

    Thoughts have two names: `reasoning` is the one of OpenAI's open models and vLLM, `reasoning_content` is DeepSeek's,
    which most clients know. The first is null without thoughts, since clients of vLLM read it unasked.
    """
    reply = joined(events)
    content: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None, "reasoning": None}
    if reply.thinking:
        content |= {"reasoning": reply.thinking, "reasoning_content": reply.thinking}
    if reply.calls:
        content["content"] = reply.text or None
        content["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return content


def delta(events: Iterable[ReplyEvent]) -> dict[str, Any]:
    """A chunk's addition to the message; empty if there is none. A call's first entry has its id and name."""
    text, thinking = "", ""
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        match event:
            case Text(piece):
                text += piece
            case Thinking(piece):
                thinking += piece
            case CallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": call_id, "type": "function", "function": function}
            case CallArguments(index, piece):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += piece
    said: dict[str, Any] = {"content": text} if text else {}
    if thinking:
        said |= {"reasoning": thinking, "reasoning_content": thinking}
    return said | ({"tool_calls": list(calls.values())} if calls else {})
