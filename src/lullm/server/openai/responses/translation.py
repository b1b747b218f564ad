"""Input items as the messages of a chat."""

import base64
from collections.abc import Iterator
from typing import Any

from lullm.server.openai.responses.item import (
    AnyItem,
    AnyTool,
    ChosenFunction,
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    Input,
    MessageItem,
    NamespaceTool,
    ReasoningItem,
)

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
            case FunctionOutputItem():
                content = item.output if isinstance(item.output, str) else "\n".join(p.text for p in item.output)
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": content})
            case MessageItem() if item.role != "assistant":
                messages.append({"role": item.role, "content": _text(item)})
            case _:
                _add(item, messages)
    return messages


def _text(item: MessageItem) -> str:
    if isinstance(item.content, str):
        return item.content
    return "\n".join(part.text for part in item.content)


def _add(item: AnyItem, messages: list[dict[str, Any]]) -> None:
    """Put an item of the model into its last message, or into a new one where that one is past it."""
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
        case FunctionCallItem():
            if last is None:
                last = {"role": "assistant", "content": ""}
                messages.append(last)
            function = {"name": _joined(item.namespace, item.name), "arguments": item.arguments}
            last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})


def _thoughts(item: ReasoningItem) -> str:
    said, summary = ("\n".join(part.text for part in parts or ()) for parts in (item.content, item.summary))
    return said or unsealed(item.encrypted_content or "") or summary


def sealed(thoughts: str) -> str:
    """Thoughts as `encrypted_content`, which clients send back where they would leave thoughts in the clear out."""
    return _SEAL + base64.b64encode(thoughts.encode(errors="replace")).decode()


def unsealed(content: str) -> str:
    """The thoughts of such a content; empty if another server has written it."""
    if not content.startswith(_SEAL):
        return ""
    try:
        return base64.b64decode(content.removeprefix(_SEAL), validate=True).decode()
    except ValueError:
        return ""


def openai_tools(tools: list[AnyTool], choice: str | ChosenFunction | None) -> dict[str, Any]:
    """The fields that say which tools there are, and which of them shall be called."""
    fields: dict[str, Any] = {"tools": list(_functions(tools))}
    if isinstance(choice, ChosenFunction):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        fields["tool_choice"] = choice
    return fields


def _functions(tools: list[AnyTool]) -> Iterator[dict[str, Any]]:
    """Models know of no namespaces: their names begin those of functions; what one is for is said with its first."""
    for tool in tools:
        if isinstance(tool, FunctionTool):
            yield _function(tool, tool.name, tool.description)
            continue
        said = tool.description
        for function in tool.tools:
            text = "\n\n".join(filter(None, (said, function.description)))
            yield _function(function, _joined(tool.name, function.name), text or None)
            said = None


def _function(tool: FunctionTool, name: str, description: str | None) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _joined(namespace: str | None, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def called_names(tools: list[AnyTool]) -> dict[str, dict[str, str]]:
    """What a model calls a function of a namespace -> the fields of a call that name it."""
    return {
        _joined(space.name, tool.name): {"name": tool.name, "namespace": space.name}
        for space in tools
        if isinstance(space, NamespaceTool)
        for tool in space.tools
    }
