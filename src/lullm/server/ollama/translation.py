"""Translates Ollama's messages and options into OpenAI's form."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_OPTIONS = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}


def openai_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields for `options`. A negative length or seed means none."""
    fields = {_OPTIONS.get(name, name): value for name, value in options.items()}
    return {name: v for name, v in fields.items() if not (name in ("max_tokens", "seed") and v < 0)}


def openai_thinking(think: bool | str | None) -> dict[str, Any]:
    """OpenAI's fields for thinking: whether, and how hard."""
    if think is None:
        return {}
    if isinstance(think, bool):
        return {"enable_thinking": think}
    return {"enable_thinking": True, "reasoning_effort": think}


def with_pictures(text: str, images: Sequence[str] | None) -> str | list[dict[str, Any]]:
    """OpenAI's content: pictures in base64 stand before the text."""
    if not images:
        return text
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}} for data in images
    ]
    return [*parts, {"type": "text", "text": text}]


def openai_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages, with ids for calls that have none. A result then belongs to the next call without one."""
    translated: list[dict[str, Any]] = []
    open_calls: list[tuple[str, str]] = []  # (id, name) of calls that have no result yet
    for message in messages:
        if message["role"] == "assistant":
            translated.append(_assistant(message, len(translated), open_calls))
        elif message["role"] == "tool":
            call_id, name = _answered(message, open_calls)
            result = {"role": "tool", "content": message["content"], "tool_call_id": call_id}
            translated.append(result if name is None else result | {"name": name})
        else:
            content = with_pictures(message["content"], message.get("images"))
            translated.append({"role": message["role"], "content": content})
    return translated


def _assistant(message: Mapping[str, Any], number: int, open_calls: list[tuple[str, str]]) -> dict[str, Any]:
    calls = []
    for index, call in enumerate(message.get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        call_id = call.get("id") or f"call_{number}_{index}"
        open_calls.append((call_id, name))
        function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
        calls.append({"id": call_id, "type": "function", "function": function})
    translated: dict[str, Any] = {"role": "assistant", "content": message["content"]}
    if "thinking" in message:
        translated["reasoning_content"] = message["thinking"]
    if calls:
        translated["tool_calls"] = calls
    return translated


def _answered(message: Mapping[str, Any], open_calls: list[tuple[str, str]]) -> tuple[str, str | None]:
    """The id and the name of the call that a tool's message answers; it is not open any more."""
    given_id, given_name = message.get("tool_call_id"), message.get("tool_name")
    for place, (call_id, name) in enumerate(open_calls):
        if given_id == call_id or (given_id is None and given_name in (None, name)):
            del open_calls[place]
            return call_id, name
    return given_id or "call_unknown", given_name
