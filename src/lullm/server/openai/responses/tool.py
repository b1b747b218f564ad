"""The tools of a request to Responses: their wire forms, their functions in a chat, and the items of their calls.

A model knows functions only. The name of a namespace begins the names of its functions, and a custom tool is a function
of one string, its `input`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lullm.server.wire import BOUNDED, FAIL_FAST, WireModel


class FunctionTool(WireModel):
    others: ClassVar = re.compile(r"(web_search(_preview)?|code_interpreter|file_search|image_generation|mcp)[\d_]*")
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def function(self) -> dict[str, Any]:
        """Its fields in a chat's tools."""
        fields = {"description": self.description, "parameters": self.parameters, "strict": self.strict}
        return {"name": self.name} | {name: value for name, value in fields.items() if value is not None}


class CustomFormat(WireModel):
    """The form of a custom tool's input. `definition`: a Lark grammar or a regular expression."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(WireModel):
    """A tool that takes text. The model gets its grammar as text; a regular expression also restricts guided calls."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat | None = None

    def function(self) -> dict[str, Any]:
        """Its fields in a chat's tools."""
        said, field = self.description, {"type": "string"}
        if self.format is not None and self.format.definition is not None:
            form = f"The input must match this {self.format.syntax or 'lark'} grammar:\n{self.format.definition}"
            said = "\n\n".join(filter(None, (said, form)))
            if self.format.syntax == "regex":
                field["pattern"] = self.format.definition
        parameters = {"type": "object", "properties": {"input": field}, "required": ["input"]}
        described = {"description": said} if said else {}
        return {"name": self.name} | described | {"parameters": parameters}


Callable = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


class NamespaceTool(WireModel):
    """Tools that belong together; calls have both names."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Annotated[list[Callable], FAIL_FAST, BOUNDED]


AnyTool = Annotated[FunctionTool | CustomTool | NamespaceTool, Field(discriminator="type")]


class ChosenTool(WireModel):
    type: Literal["function", "custom"]
    name: str


class AllowedTools(WireModel):
    """The only tools that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], FAIL_FAST, BOUNDED, Field(min_length=1)]


AnyChoice = Annotated[ChosenTool | AllowedTools, Field(discriminator="type")]


def openai_tools(tools: list[AnyTool], choice: str | ChosenTool | AllowedTools | None) -> dict[str, Any]:
    """OpenAI's fields for the tools, and for the choice among them."""
    functions = [tool.function() | fields for tool, fields in _described(tools)]
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": function} for function in functions]}
    if isinstance(choice, ChosenTool):
        fields["tool_choice"] = _chosen(choice)
    elif isinstance(choice, AllowedTools):
        allowed = {"mode": choice.mode, "tools": [_chosen(tool) for tool in choice.tools]}
        fields["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
    elif choice is not None:
        fields["tool_choice"] = choice
    return fields


def _chosen(tool: ChosenTool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool.name}}


def _described(tools: list[AnyTool]) -> Iterator[tuple[FunctionTool | CustomTool, dict[str, Any]]]:
    """Each callable tool, with the fields of its function that its namespace changes.

    The first tool of a namespace has the namespace's description.
    """
    for tool in tools:
        if not isinstance(tool, NamespaceTool):
            yield tool, {}
            continue
        said = tool.description
        for inner in tool.tools:
            fields = {"name": joined(tool.name, inner.name)}
            texts = [text for text in (said, inner.function().get("description")) if text]
            yield inner, fields | ({"description": "\n\n".join(texts)} if texts else {})
            said = None


def joined(namespace: str | None, name: str) -> str:
    """The model's name of a tool."""
    return f"{namespace}__{name}" if namespace else name


def called_as(tools: Iterable[AnyTool]) -> dict[str, dict[str, str]]:
    """The model's name of a tool -> the fields of an item that calls it: its type, its name, its namespace."""
    found = {}
    for tool in tools:
        inside, space = (tool.tools, tool.name) if isinstance(tool, NamespaceTool) else ([tool], None)
        for inner in inside:
            kind = "custom_tool_call" if isinstance(inner, CustomTool) else "function_call"
            named = {"namespace": space} if space else {}
            found[joined(space, inner.name)] = {"type": kind, "name": inner.name} | named
    return found


def arguments_of(text: str) -> str:
    """The arguments of the function that stands for a custom tool."""
    return json.dumps({"input": text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """A custom tool's input. Arguments of another shape, such as cut ones, are passed on as the model wrote them."""
    try:
        found = json.loads(arguments, strict=False)["input"]
    except (ValueError, TypeError, KeyError):
        return arguments
    return found if isinstance(found, str) else arguments
