"""The wire forms of Anthropic's Messages API. `cache_control` has no effect: prefixes are cached anyway."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from lullm.server.wire import BOUNDED, FAIL_FAST, WireModel, unseen


class Block(WireModel):
    """A part of a message."""

    is_echoed: ClassVar = True
    cache_control: dict[str, Any] | None = None


class TextBlock(Block):
    type: Literal["text"]
    text: str
    missing: ClassVar = {"citations": (None, [])}


TextBlocks = Annotated[str | Annotated[list[TextBlock], FAIL_FAST], BOUNDED]


class PictureSource(WireModel):
    """A picture itself, or its URL."""

    type: Literal["base64", "url"]
    media_type: str | None = None
    data: str | None = None
    url: str | None = None

    @model_validator(mode="after")
    def _check(self) -> "PictureSource":
        name = "data" if self.type == "base64" else "url"
        if getattr(self, name) is None:
            raise ValueError(f"a source of type {self.type!r} needs {name}")
        return self

    @property
    def address(self) -> str:
        """As a URL."""
        return self.url or f"data:{self.media_type or 'image/png'};base64,{self.data}"


class PictureBlock(Block):
    type: Literal["image"]
    source: PictureSource


class DocumentSource(WireModel):
    """A document's text, or a file, which no model here reads."""

    type: Literal["text", "content", "base64", "url", "file"]
    media_type: str | None = None
    data: str | None = None
    content: TextBlocks | None = None
    url: str | None = None
    file_id: str | None = None

    @model_validator(mode="after")
    def _check(self) -> "DocumentSource":
        if (self.type == "text" and self.data is None) or (self.type == "content" and self.content is None):
            raise ValueError(f"a source of type {self.type!r} needs {'data' if self.type == 'text' else 'content'}")
        return self


_NO_CITATIONS: dict[str, tuple[Any, ...]] = {"citations": (None, {"enabled": False})}


class DocumentBlock(Block):
    type: Literal["document"]
    source: DocumentSource
    title: str | None = None
    context: str | None = None
    missing: ClassVar = _NO_CITATIONS


class SearchResultBlock(Block):
    type: Literal["search_result"]
    source: str
    title: str
    content: TextBlocks
    missing: ClassVar = _NO_CITATIONS


class ThinkingBlock(Block):
    """`signature` is accepted without effect."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block):
    """Thinking that only Anthropic can read: it is left out."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Block):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ResultText(TextBlock):
    """A part of a tool's result. For pictures, which the model cannot see there, it gets a note."""

    others: ClassVar = re.compile("image")

    @classmethod
    def stand_in(cls, other: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": unseen(other)}]


ResultBlock = Annotated[ResultText | DocumentBlock | SearchResultBlock, Field(discriminator="type")]


class ToolResultBlock(Block):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[str | Annotated[list[ResultBlock], FAIL_FAST], BOUNDED] = ""
    is_error: bool = False


UserBlock = TextBlock | DocumentBlock | SearchResultBlock | PictureBlock | ToolResultBlock
ModelBlock = ThinkingBlock | RedactedThinkingBlock | ToolUseBlock
AnyBlock = Annotated[UserBlock | ModelBlock, Field(discriminator="type")]


class Message(WireModel):
    role: Literal["user", "assistant", "system"]
    content: Annotated[str | Annotated[list[AnyBlock], FAIL_FAST], BOUNDED]


def _check_tool_type(kind: str | None) -> str | None:
    if kind not in (None, "custom"):
        raise ValueError(f"only tools of type 'custom', which the client runs, exist here, not {kind!r}")
    return kind


class Tool(Block):
    """A tool that the client runs."""

    others: ClassVar = re.compile(r"(web_search|web_fetch|code_execution|tool_search_tool_[a-z]+|mcp_toolset)(_\d+)?")
    type: Annotated[str | None, AfterValidator(_check_tool_type)] = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    eager_input_streaming: bool | None = None  # arguments stream as they come, either way


class ToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(WireModel):
    """`adaptive`: the model's default."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(WireModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(WireModel):
    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
