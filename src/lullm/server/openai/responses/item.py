"""The wire forms of the parts of a request to Responses: input items, and the form of the text.

Fields about an item's origin (`status`, `phase`, a `caller`) are accepted without effect.
"""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from lullm.server.openai.chat.conversation import Effort, RefusalPart
from lullm.server.wire import BOUNDED, FAIL_FAST, MISSING, WireModel, unseen


class Item(WireModel):
    is_echoed: ClassVar = True
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class TextPart(WireModel):
    """`output_text` is a part of an earlier answer."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class PicturePart(WireModel):
    """A picture by its URL, mostly a data: URL. `detail` has no effect."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "low", "high", "original"] | None = None
    missing: ClassVar = {"file_id": (None,)}


AnyPart = Annotated[TextPart | RefusalPart | PicturePart, Field(discriminator="type")]


class MessageItem(Item):
    """A turn of any role; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[str | Annotated[list[AnyPart], FAIL_FAST], BOUNDED]
    phase: str | None = None


class CallItem(Item):
    """A call of a tool, possibly in a namespace."""

    call_id: str
    name: str
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class FunctionCallItem(CallItem):
    type: Literal["function_call"]
    arguments: str


class CustomCallItem(CallItem):
    """A call of a custom tool: its input is plain text."""

    type: Literal["custom_tool_call"]
    input: str


class OutputPart(TextPart):
    """A part of a function's result. For parts that the model cannot see, it gets a note."""

    others: ClassVar = re.compile("input_(image|file)")

    @classmethod
    def stand_in(cls, other: str) -> list[dict[str, Any]]:
        return [{"type": "input_text", "text": unseen(other.removeprefix("input_"))}]


class CallOutputItem(Item):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Annotated[str | Annotated[list[OutputPart], FAIL_FAST], BOUNDED]
    caller: dict[str, Any] | None = None


class ReasoningText(WireModel):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Item):
    """The model's thoughts: the first of content, sealed content and summary that is not empty."""

    type: Literal["reasoning"]
    summary: Annotated[list[ReasoningText], FAIL_FAST, BOUNDED] = Field(default_factory=list)
    content: Annotated[list[ReasoningText], FAIL_FAST, BOUNDED] | None = None
    encrypted_content: str | None = None


class ItemReference(WireModel):
    """Where responses are stored, the item stands in its place already (`ResponseStore.read`)."""

    type: Literal["item_reference"]

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, _: Any) -> Any:
        raise ValueError(
            "an item_reference needs a server that keeps responses (--response-store): send the item (store=false)"
        )


AnyItem = Annotated[
    MessageItem | FunctionCallItem | CustomCallItem | CallOutputItem | ReasoningItem | ItemReference,
    Field(discriminator="type"),
]


def _with_types(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [{"type": "message"} | item if isinstance(item, dict) else item for item in value]


Input = Annotated[str | Annotated[list[AnyItem], FAIL_FAST, BeforeValidator(_with_types)], BOUNDED]


class TextFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(WireModel):
    format: TextFormat | None = None
    missing: ClassVar = {"verbosity": MISSING["verbosity"]}


class Reasoning(WireModel):
    """Summaries are not written: the answer has the thoughts themselves."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    missing: ClassVar = {"context": (None, "auto"), "mode": (None, "standard")}
