"""The bodies of Anthropic's endpoints."""

from typing import Annotated, Any, ClassVar

from lullm.engine.client import EngineClient
from lullm.server.anthropic.error import THREAD_UNSUPPORTED
from lullm.server.anthropic.schema import Message, OutputConfig, TextBlocks, Thinking, Tool, ToolChoice
from lullm.server.anthropic.translation import openai_messages, openai_thinking, openai_tools
from lullm.server.error import ApiError
from lullm.server.openai.reply import reply_form_of
from lullm.server.openai.schema import ChatBody, DialectBody
from lullm.server.wire import BOUNDED, FAIL_FAST, Strings, parse_body


class CountBody(DialectBody):
    """POST /v1/messages/count_tokens: the fields that make the prompt."""

    carried: ClassVar = {"chat_template_kwargs": "chat_template_kwargs"}
    blamed: ClassVar = {
        **dict.fromkeys(("response_format", "reasoning_effort"), "output_config"),
        **dict.fromkeys(("enable_thinking", "thinking_token_budget", "include_reasoning"), "thinking"),
        "parallel_tool_calls": "tool_choice",
    }
    model: str
    messages: Annotated[list[Message], FAIL_FAST, BOUNDED]
    system: TextBlocks | None = None
    tools: Annotated[list[Tool], FAIL_FAST, BOUNDED] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    thread: Any = None
    # vLLM's
    chat_template_kwargs: dict[str, Any] | None = None
    missing: ClassVar = {
        "container": (None,),
        "mcp_servers": (None, []),
        "service_tier": (None, "auto", "standard_only"),
        "speed": (None, "standard"),
    }

    def translated(self, engine: EngineClient) -> ChatBody:
        fields = self._fields()
        if "thinking_token_budget" in fields and reply_form_of(engine).thinking is None:
            del fields["thinking_token_budget"]  # a model without thoughts is within every budget
        return parse_body(ChatBody, fields)

    def _fields(self) -> dict[str, Any]:
        if self.thread is not None:
            message = "thread: conversations are not kept here; send all messages"
            raise ApiError(400, message, param="thread", code=THREAD_UNSUPPORTED)
        fields = self._carried() | {"messages": openai_messages(self.system, self.messages)}
        if self.messages and self.messages[-1].role == "assistant":
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.tools:
            fields |= openai_tools(self.tools, self.tool_choice)
        elif self.tool_choice is not None and self.tool_choice.type in ("any", "tool"):
            raise ApiError(400, "tool_choice needs tools", param="tool_choice")
        if self.thinking is not None:
            fields |= openai_thinking(self.thinking)
        if self.output_config is not None and self.output_config.format is not None:
            schema = {"name": "output", "schema": self.output_config.format.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        if self.output_config is not None and self.output_config.effort is not None:
            fields["reasoning_effort"] = self.output_config.effort
        return fields


class MessagesBody(CountBody):
    """POST /v1/messages."""

    carried: ClassVar = {
        **CountBody.carried,
        **{name: name for name in ("max_tokens", "stream", "temperature", "top_k", "top_p", "cache_salt")},
        "stop_sequences": "stop",
    }
    max_tokens: int
    stop_sequences: Strings | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    # vLLM's
    cache_salt: str | None = None
