"""Input items as the messages of a chat."""

import base64
from typing import Any

from lullm.server.error import ApiError
from lullm.server.openai.responses.item import (
    AnyItem,
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    Input,
    MessageItem,
    PicturePart,
    ReasoningItem,
)
from lullm.server.openai.responses.tool import arguments_of, joined

_SEAL = "lullm:"


def openai_messages(instructions: str | None, given: Input) -> list[dict[str, Any]]:
    """All messages; `instructions` are the first of them.

    Thoughts, text and calls that follow each other are one message of the model.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for item in given:
        match item:
            case CallOutputItem():
                content = item.output if isinstance(item.output, str) else "\n".join(p.text for p in item.output)
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
            case MessageItem() if item.role != "assistant":
                messages.append({"role": item.role, "content": _content(item)})
            case _:
                _add(item, messages)
    return messages


def _text(item: MessageItem) -> str:
    if isinstance(item.content, str):
        return item.content
    texts = [part.text for part in item.content if not isinstance(part, PicturePart)]
    if len(texts) < len(item.content):
        raise ApiError(400, "a picture belongs to a message of the user", param="input")
    return "\n".join(texts)


def _content(item: MessageItem) -> str | list[dict[str, Any]]:
    """The parts of a message with pictures, or its text."""
    if isinstance(item.content, str) or not any(isinstance(part, PicturePart) for part in item.content):
        return _text(item)
    return [
        {"type": "image_url", "image_url": {"url": part.image_url}}
        if isinstance(part, PicturePart)
        else {"type": "text", "text": part.text}
        for part in item.content
    ]


def _add(item: AnyItem, messages: list[dict[str, Any]]) -> None:
    """Add an item of the model to its last message, or to a new one if that is complete."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    match item:
        case ReasoningItem():
            text = _thoughts(item)
            if text:
                messages.append({"role": "assistant", "content": "", "reasoning_content": text})
        case MessageItem():
            if last is None or last["content"] or "tool_calls" in last:
                messages.append({"role": "assistant", "content": _text(item)})
            else:
                last["content"] = _text(item)
        case FunctionCallItem() | CustomCallItem():
            if last is None:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            said = item.arguments if isinstance(item, FunctionCallItem) else arguments_of(item.input)
            function = {"name": joined(item.namespace, item.name), "arguments": said}
            last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})


def _thoughts(item: ReasoningItem) -> str:
    said, summary = ("\n".join(part.text for part in parts or ()) for parts in (item.content, item.summary))
    return said or unsealed(item.encrypted_content or "") or summary


def sealed(thoughts: str) -> str:
    """Thoughts as `encrypted_content`, which clients send back; thoughts in plain text they leave out."""
    return _SEAL + base64.b64encode(thoughts.encode(errors="replace")).decode()


def unsealed(content: str) -> str:
    """The thoughts of such a content; empty if another server has written it."""
    if not content.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(content.removeprefix(_SEAL), validate=True).decode()
    except ValueError:
        return ""
