"""The wire forms of a conversation: messages, callable tools, and variables of the chat template."""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import from_json

from lullm.server.error import ApiError
from lullm.server.wire import BOUNDED, FAIL_FAST, WireModel
from lullm.text.reply.replies import thinking_options
from lullm.types.reply.rules import CallRules
from lullm.types.request import TEMPLATE_FIELDS, Conversation


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class RefusalPart(WireModel):
    """A refusal of the model, in place of an answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class PictureUrl(WireModel):
    """`detail` has no effect: the model's own files say in how many pixels it sees."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class PicturePart(WireModel):
    """A picture, mostly as a data: URL. The engine decodes it, or refuses it."""

    type: Literal["image_url"]
    image_url: PictureUrl | str


class VideoUrl(WireModel):
    url: str


class VideoUrlPart(WireModel):
    """A video, as vLLM takes it: mostly a data: URL. The engine decodes it, or refuses it."""

    type: Literal["video_url"]
    video_url: VideoUrl | str


class VideoPart(WireModel):
    """A video, as Qwen's clients send it: a URL, or those of its frames."""

    type: Literal["video"]
    video: str | Annotated[list[str], FAIL_FAST, BOUNDED]


class SoundFile(WireModel):
    """`data`: base64. `format` has no effect: the file says what it is."""

    data: str
    format: str | None = None


class SoundFilePart(WireModel):
    """A sound, as OpenAI's clients send it. The engine decodes it, or refuses it."""

    type: Literal["input_audio"]
    input_audio: SoundFile


class SoundUrl(WireModel):
    url: str


class SoundUrlPart(WireModel):
    """A sound, as vLLM takes it: mostly a data: URL."""

    type: Literal["audio_url"]
    audio_url: SoundUrl | str


class SoundPart(WireModel):
    """A sound, as transformers takes it: one of these, a data: URL or base64."""

    type: Literal["audio"]
    audio: str | None = None
    audio_url: str | None = None
    url: str | None = None
    base64: str | None = None


AnyText = TextPart | RefusalPart
AnyPart = Annotated[
    AnyText | PicturePart | VideoUrlPart | VideoPart | SoundFilePart | SoundUrlPart | SoundPart,
    Field(discriminator="type"),
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def known_arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; if they were cut by the reply's end, its complete part."""
    try:
        arguments = from_json(text or "{}", allow_partial="trailing-strings")
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


class CalledFunction(WireModel):
    """`arguments`: the text of a JSON object.

    If `max_tokens` cut it in an answer, clients send it back as it is; an error would end their conversation there.
    """

    name: str
    arguments: str | dict[str, Any] = "{}"

    @model_validator(mode="after")
    def _complete_arguments(self) -> "CalledFunction":
        if isinstance(self.arguments, str) and self.arguments.startswith("{"):
            try:
                json.loads(self.arguments)
            except ValueError:
                self.arguments = known_arguments(self.arguments)
            except RecursionError:
                pass  # refused where it is rendered
        return self


class ToolCallPart(WireModel):
    """A call, as in an answer."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(WireModel):
    """One turn."""

    is_echoed: ClassVar = True
    missing: ClassVar = {"function_call": (None,), "audio": (None,)}

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | Annotated[list[AnyPart], FAIL_FAST] | None, BOUNDED] = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallPart], FAIL_FAST, BOUNDED] | None = None
    tool_call_id: str | None = None
    # The model's thoughts; the second name is DeepSeek's. Templates print them if the model is to see them again.
    reasoning: str | None = None
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _check_content(self) -> "ChatMessage":
        says_else = self.tool_calls or self.thoughts or self.refusal
        if self.content in (None, []) and not (self.role == "assistant" and says_else):
            raise ValueError("content is required, but beside an assistant's tool_calls, reasoning or refusal")
        for name, role in (("tool_calls", "assistant"), ("refusal", "assistant"), ("tool_call_id", "tool")):
            if getattr(self, name) and self.role != role:
                raise ValueError(f"{name} belongs to a message of the role {role!r}")
        return self

    @property
    def thoughts(self) -> str | None:
        """The model's thoughts, under either name."""
        return self.reasoning or self.reasoning_content

    def for_template(self) -> dict[str, Any]:
        """In the form of chat templates: text parts joined by newlines, unless pictures or sounds are among them;
        'developer' is the newer name of 'system'."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role}
        said = self.refusal if self.content is None else self.content
        if said is None and not self.tool_calls:  # only thoughts; templates expect null beside calls alone
            said = ""
        message["content"] = _content(said) if isinstance(said, list) else said
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump(exclude_none=True) for call in self.tool_calls]
        if self.thoughts and self.role == "assistant":
            message["reasoning_content"] = self.thoughts
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        return message


def _content(parts: list[AnyPart]) -> str | list[dict[str, Any]]:
    if all(isinstance(part, AnyText) for part in parts):
        return "\n".join(part.text for part in parts if isinstance(part, AnyText))
    return [
        {"type": "text", "text": part.text} if isinstance(part, AnyText) else part.model_dump(exclude_none=True)
        for part in parts
    ]


class ChosenFunction(WireModel):
    name: str


class ToolChoice(WireModel):
    """The one tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction


class AllowedTools(WireModel):
    """Some of the tools, the only ones that may be called. The template gets all, so the prompt's prefix stays."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolChoice], FAIL_FAST, BOUNDED, Field(min_length=1)]


class AllowedToolsChoice(WireModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Messages = Annotated[list[ChatMessage], FAIL_FAST, BOUNDED]
Tools = Annotated[
    list[dict[str, Any]], FAIL_FAST, BOUNDED
]  # the engine checks them, and the template gets them unchanged


class PromptedBody(WireModel):
    """Fields beside messages that change the prompt."""

    tools: Tools | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: Annotated[list[dict[str, Any]], FAIL_FAST, BOUNDED] | None = None

    def template_options(self) -> dict[str, Any]:
        """The template's variables beside the messages. Raises ApiError: a name is reserved."""
        options = dict(self.chat_template_kwargs or {})
        for name in sorted(TEMPLATE_FIELDS & options.keys()):
            raise ApiError(400, f"chat_template_kwargs: {name} is a field of its own", param="chat_template_kwargs")
        if self.tools:
            options["tools"] = self.tools
        if self.documents:
            options["documents"] = self.documents
        for name in ("add_generation_prompt", "continue_final_message"):
            if (value := getattr(self, name)) is not None:
                options[name] = value
        return options


class ReplyBody(PromptedBody):
    """Fields for the reply: calls of tools, and thoughts."""

    tool_choice: (
        Literal["auto", "none", "required"]
        | Annotated[ToolChoice | AllowedToolsChoice, Field(discriminator="type")]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    include_reasoning: bool = True
    functions: Any = None
    function_call: Any = None

    @model_validator(mode="after")
    def _refuse_old_names(self) -> "ReplyBody":
        if self.functions or self.function_call not in (None, "none"):
            name = "functions" if self.functions else "function_call"
            raise ApiError(
                400, f"{name} is OpenAI's old name: use tools and tool_choice", param=name, code="unsupported_field"
            )
        return self

    def template_options(self) -> dict[str, Any]:
        options = super().template_options()
        thinks = self.enable_thinking
        if self.reasoning_effort == "none":
            if thinks:
                raise ApiError(400, "reasoning_effort 'none' turns thinking off", param="enable_thinking")
            thinks = False
        elif self.reasoning_effort is not None:
            options.setdefault("reasoning_effort", self.reasoning_effort)
        return options if thinks is None else thinking_options(thinks) | options

    def call_rules(self) -> CallRules:
        """The rules for calls of tools."""
        is_parallel = self.parallel_tool_calls is not False
        if isinstance(self.tool_choice, ToolChoice):
            return CallRules("required", (self.tool_choice.function.name,), is_parallel=False)
        if isinstance(self.tool_choice, AllowedToolsChoice):
            allowed = self.tool_choice.allowed_tools
            return CallRules(allowed.mode, tuple(tool.function.name for tool in allowed.tools), is_parallel)
        if self.tool_choice in ("auto", "required") and not self.tools:
            raise ApiError(400, "tool_choice needs tools", param="tool_choice")
        return CallRules(self.tool_choice or "auto", is_parallel=is_parallel)


def conversation(
    messages: list[ChatMessage],
    split_special_tokens: bool | None,
    options: dict[str, Any] | None = None,
    calls: CallRules | None = None,
    mm_processor_kwargs: dict[str, Any] | None = None,
) -> Conversation:
    """Messages in the engine's form."""
    prompt, calls = [message.for_template() for message in messages], calls or CallRules()
    return Conversation(prompt, options or {}, split_special_tokens, calls, mm_processor_kwargs=mm_processor_kwargs)
