"""The bodies of POST /v1/responses and /v1/responses/input_tokens."""

from typing import Annotated, Any, ClassVar, Literal

from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.server.openai.responses.item import Input, Reasoning, TextConfig
from lullm.server.openai.responses.tool import AnyChoice, AnyTool, openai_tools
from lullm.server.openai.responses.translation import openai_messages
from lullm.server.openai.schema import ChatBody, DialectBody, EventOptions, RequestId
from lullm.server.openai.structured import StructuredOutputsBody
from lullm.server.wire import BOUNDED, FAIL_FAST, Strings, TokenIds, parse_body

_VLLMS = (
    *("top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "structured_outputs", "priority"),
    *("cache_salt", "request_id", "stop_token_ids"),
)
"""vLLM's fields that mean the same in a chat."""

LOGPROBS, SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"


def items_of(given: Any) -> list[Any]:
    """Input as items; a string is what the user says."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


class InputTokensBody(DialectBody):
    """POST /v1/responses/input_tokens: the fields that make the prompt.

    `input`: the whole conversation, that of `previous_response_id` included (`ResponseStore.read`).
    """

    carried: ClassVar = {name: name for name in ("parallel_tool_calls", "chat_template_kwargs", "mm_processor_kwargs")}
    blamed: ClassVar = {
        "messages": "input",
        "response_format": "text",
        **dict.fromkeys(("reasoning_effort", "enable_thinking"), "reasoning"),
        "logprobs": "top_logprobs",
    }
    input: Input
    instructions: str | None = None
    tools: Annotated[list[AnyTool], FAIL_FAST, BOUNDED] | None = None
    tool_choice: Literal["none", "auto", "required"] | AnyChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    # vLLM's
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    missing: ClassVar = {
        "prompt": (None,),
        "truncation": (None, "disabled"),
        "max_tool_calls": (None,),
        "context_management": (None, []),
    }

    def translated(self, engine: EngineClient) -> ChatBody:
        return parse_body(ChatBody, self._fields())

    def _fields(self) -> dict[str, Any]:
        if self.conversation is not None:
            message = "conversation: conversations are not kept here; send previous_response_id, or all of it as input"
            raise ApiError(400, message, param="conversation", code="unsupported_field")
        fields = self._carried() | {"messages": openai_messages(self.instructions, self.input)}
        if self.tools:
            fields |= openai_tools(self.tools, self.tool_choice)
        elif self.tool_choice not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice needs tools", param="tool_choice")
        if self.reasoning is not None and self.reasoning.effort is not None:
            fields["reasoning_effort"] = self.reasoning.effort
        return fields


class ResponsesBody(InputTokensBody):
    """POST /v1/responses. `store`: the answer says whether the response is stored."""

    carried: ClassVar = {
        **InputTokensBody.carried,
        **{name: name for name in ("stream", "temperature", "top_p", "keep_alive", *_VLLMS)},
        "max_output_tokens": "max_tokens",
    }
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: Strings | None = None
    stream: bool | None = None
    stream_options: EventOptions | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    # vLLM's
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Strings | None = None
    stop_token_ids: TokenIds | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[Any, Any] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputsBody | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: RequestId | None = None
    # Ollama's, as at the other endpoints
    keep_alive: float | str | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text comes with its log-probabilities."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    @property
    def seals_thoughts(self) -> bool:
        """Whether thoughts come in a form that clients send back without reading it."""
        return SEALED in (self.include or ())

    def items(self) -> list[dict[str, Any]]:
        """The input on the wire."""
        return [each if isinstance(each, dict) else each.model_dump(exclude_none=True) for each in items_of(self.input)]

    def _fields(self) -> dict[str, Any]:
        unknown = set(self.include or ()) - {LOGPROBS, SEALED}
        if unknown:
            raise ApiError(400, f"include: {sorted(unknown)[0]!r} is not supported by this server", param="include")
        fields = super()._fields()
        if self.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.text is not None and self.text.format is not None and self.text.format.type != "text":
            fields["response_format"] = self._response_format()
        return fields

    def _response_format(self) -> dict[str, Any]:
        assert self.text is not None and self.text.format is not None
        form = self.text.format
        if form.type == "json_object":
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": form.name or "output", "schema": form.schema_}}
