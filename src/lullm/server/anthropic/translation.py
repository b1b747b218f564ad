"""Translates Anthropic's messages and tools into OpenAI's form."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from lullm.server.anthropic.schema import (
    AnyBlock,
    DocumentBlock,
    Message,
    PictureBlock,
    SearchResultBlock,
    TextBlock,
    TextBlocks,
    Thinking,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)
from lullm.server.error import ApiError
from lullm.server.wire import unseen

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def openai_messages(system: TextBlocks | None, messages: list[Message]) -> list[dict[str, Any]]:
    """All messages; `system` is the first of them."""
    translated = [{"role": "system", "content": _text(system)}] if system else []
    for message in messages:
        if isinstance(message.content, str):
            translated.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            translated.append(_assistant(message.content))
        else:
            translated += _user(message.role, message.content)
    return translated


def _text(content: str | Sequence[TextBlock | DocumentBlock | SearchResultBlock]) -> str:
    """The text of blocks; a note for a file, which can only stand in the result of a tool."""
    if isinstance(content, str):
        return content
    return "\n".join(unseen("document") if (text := _said(block)) is None else text for block in content)


def _said(block: TextBlock | DocumentBlock | SearchResultBlock) -> str | None:
    """What a block says: a text with a title is marked, so that the model knows where it ends. None: it is a file."""
    match block:
        case TextBlock():
            return block.text
        case SearchResultBlock():
            return _marked("search_result", _text(block.content), source=block.source, title=block.title)
        case DocumentBlock():
            text = block.source.data if block.source.type == "text" else block.source.content
            return None if text is None else _marked("document", _text(text), title=block.title, context=block.context)


def _marked(tag: str, text: str, **about: str | None) -> str:
    lines = [f"<{name}>{value}</{name}>" for name, value in about.items() if value]
    return "\n".join([f"<{tag}>", *lines, text, f"</{tag}>"])


def _assistant(blocks: list[AnyBlock]) -> dict[str, Any]:
    """One message of the model: its thinking, its text, its calls."""
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock() | PictureBlock() | DocumentBlock() | SearchResultBlock():
                raise ApiError(400, f"a block {block.type} belongs to a message of the user", param="messages")
    translated: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        translated["reasoning_content"] = "".join(thoughts)
    if calls:
        translated["tool_calls"] = calls
    return translated


def _user(role: str, blocks: list[AnyBlock]) -> Iterator[dict[str, Any]]:
    """A message of the user or the system: first each of its tools' results, then its text and its pictures."""
    texts: list[str] = []
    parts: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case TextBlock() | DocumentBlock() | SearchResultBlock():
                text = _said(block)
                if text is None:
                    told = "a document is text here: send its words in a source of type 'text', not a file"
                    raise ApiError(400, told, param="messages", code="unsupported_field")
                texts.append(text)
                parts.append({"type": "text", "text": text})
            case PictureBlock():
                parts.append({"type": "image_url", "image_url": {"url": block.source.address}})
            case ToolResultBlock():
                text = _text(block.content)
                content = f"Error: {text}" if block.is_error else text  # chat templates have no other way to express it
                yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
            case _:
                raise ApiError(400, f"a {block.type} block belongs to a message of the assistant", param="messages")
    if len(parts) > len(texts):
        yield {"role": role, "content": parts}
    elif texts:
        yield {"role": role, "content": "\n".join(texts)}


def openai_tools(tools: list[Tool], choice: ToolChoice | None) -> dict[str, Any]:
    """OpenAI's fields for the tools, and for the choice among them."""
    translated: dict[str, Any] = {"tools": [_tool(tool) for tool in tools]}
    if choice is None:
        return translated
    if choice.type == "tool":
        if choice.name is None:
            raise ApiError(400, "tool_choice of type 'tool' needs the tool's name", param="tool_choice")
        translated["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    else:
        translated["tool_choice"] = _CHOICES[choice.type]
    if choice.disable_parallel_tool_use:
        translated["parallel_tool_calls"] = False
    return translated


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def openai_thinking(thinking: Thinking) -> dict[str, Any]:
    """OpenAI's fields for thinking: whether, how much, and whether it is shown."""
    translated: dict[str, Any] = {}
    if thinking.type != "adaptive":
        translated["enable_thinking"] = thinking.type == "enabled"
    if thinking.budget_tokens is not None:
        translated["thinking_token_budget"] = thinking.budget_tokens
    if thinking.display == "omitted":
        translated["include_reasoning"] = False
    return translated
