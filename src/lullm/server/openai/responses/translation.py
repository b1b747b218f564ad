"""Input items as the messages of a chat."""

from typing import Any

from lullm.server.openai.responses.item import (
    AnyItem,
    ChosenFunction,
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    Input,
    MessageItem,
    ReasoningItem,
)


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
            text = "\n".join(part.text for part in item.content or item.summary)
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
            function = {"name": item.name, "arguments": item.arguments}
            last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})


def openai_tools(tools: list[FunctionTool], choice: str | ChosenFunction | None) -> dict[str, Any]:
    """The fields that say which tools there are, and which of them shall be called."""
    functions = [tool.model_dump(exclude={"type"}, exclude_none=True) for tool in tools]
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": function} for function in functions]}
    if isinstance(choice, ChosenFunction):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None:
        fields["tool_choice"] = choice
    return fields
