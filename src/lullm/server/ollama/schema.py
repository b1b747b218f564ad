"""The wire forms of Ollama's requests for text."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from lullm.config.generation import OLLAMA, left_open
from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.server.ollama.translation import openai_messages, openai_options, openai_thinking, with_pictures
from lullm.server.openai.schema import ChatBody, CompletionBody, DialectBody, QueuedBody
from lullm.server.openai.validation import keep_alive_s
from lullm.server.wire import BOUNDED, FAIL_FAST, Strings, WireModel, parse_body

_OPTIONS = {"max_tokens": "num_predict", "repetition_penalty": "repeat_penalty"}


def _check_format(value: Any) -> Any:
    if value in (None, "", "json") or isinstance(value, dict):
        return value
    raise ValueError("must be 'json' or a JSON schema")


def kept_alive(value: float | str | None, engine: EngineClient) -> dict[str, Any]:
    """The field `keep_alive`, if it has an effect: a server that requests do not wake keeps its model anyway.

    Such a server cannot unload it either; for the time 0 the engine raises that error.
    """
    seconds = keep_alive_s(QueuedBody(keep_alive=value))
    return {} if seconds is None or (seconds and not engine.idle.heeds_keep_alive) else {"keep_alive": seconds}


class Options(WireModel):
    """Parameters of Ollama's Modelfile, as far as requests here have them."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Strings | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    missing: ClassVar = {"mirostat": (None, 0), "tfs_z": (None, 1, 1.0), "typical_p": (None, 1, 1.0)}


class OllamaBody(DialectBody):
    """The common fields of chat and generate."""

    blamed: ClassVar = {
        **dict.fromkeys(("response_format", "structured_outputs"), "format"),
        **dict.fromkeys(("enable_thinking", "reasoning_effort"), "think"),
    }
    model: str
    stream: bool = True
    format: Annotated[Any, AfterValidator(_check_format)] = None
    options: Options | None = None
    keep_alive: float | str | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    @property
    def is_load(self) -> bool:
        """Whether the request only loads the model, or unloads it."""
        raise NotImplementedError

    def translated(self, engine: EngineClient) -> ChatBody | CompletionBody:
        fields = left_open(OLLAMA, engine.stated_params)
        fields |= openai_options(self.options.model_dump(exclude_none=True) if self.options else {})
        fields |= {"stream": self.stream} | kept_alive(self.keep_alive, engine)
        if self.is_load:
            nothing = {"prompt": [engine.model_config.bos_token_id or 0], "max_tokens": 1, "temperature": 0}
            return parse_body(CompletionBody, fields | nothing)
        fields.setdefault("max_tokens", engine.config.max_model_len)
        if self.format == "json":
            fields["response_format"] = {"type": "json_object"}
        elif self.format:
            schema = {"name": "format", "schema": self.format}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return self._asked(engine, fields)

    def field_of(self, param: str | None) -> str | None:
        if param in Options.model_fields or param in _OPTIONS:
            return f"options.{_OPTIONS.get(param, param)}"
        return super().field_of(param)

    def _asked(self, engine: EngineClient, fields: dict[str, Any]) -> ChatBody | CompletionBody:
        """The body in OpenAI's form, with `fields`."""
        raise NotImplementedError

    def _chat(self, fields: dict[str, Any]) -> ChatBody:
        fields |= openai_thinking(self.think)
        if self.logprobs or self.top_logprobs:
            fields |= {"logprobs": bool(self.logprobs), "top_logprobs": self.top_logprobs}
        return parse_body(ChatBody, fields)


class CalledFunction(WireModel):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None


class ToolCall(WireModel):
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class Message(WireModel):
    """One turn."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: Annotated[list[ToolCall], FAIL_FAST, BOUNDED] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Annotated[Strings, BOUNDED] | None = None
    is_echoed: ClassVar = True


class OllamaChatBody(OllamaBody):
    """POST /api/chat."""

    messages: Annotated[list[Message], FAIL_FAST, BOUNDED] | None = None
    tools: Annotated[list[dict[str, Any]], FAIL_FAST, BOUNDED] | None = None
    # OpenAI's
    tool_choice: Any = None

    @property
    def is_load(self) -> bool:
        return not self.messages

    def _asked(self, engine: EngineClient, fields: dict[str, Any]) -> ChatBody:
        fields["messages"] = openai_messages([message.model_dump(exclude_none=True) for message in self.messages or ()])
        if self.messages and self.messages[-1].role == "assistant" and not self.messages[-1].tool_calls:
            fields |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.tools:
            fields["tools"] = [{"type": "function", **tool} for tool in self.tools]
            fields["tool_choice"] = self.tool_choice
        return self._chat(fields)


class GenerateBody(OllamaBody):
    """POST /api/generate."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool = False
    images: Annotated[Strings, BOUNDED] | None = None
    missing: ClassVar = {"template": (None, ""), "context": (None, [])}

    @property
    def is_load(self) -> bool:
        return not self.prompt

    def _asked(self, engine: EngineClient, fields: dict[str, Any]) -> ChatBody | CompletionBody:
        if not (self.raw or self.suffix) and engine.tokenizer.chat_template is not None:
            messages = [{"role": "system", "content": self.system}] if self.system else []
            asked = {"role": "user", "content": with_pictures(self.prompt or "", self.images)}
            return self._chat(fields | {"messages": [*messages, asked]})
        if self.images:
            raise ApiError(400, "images need the model's chat template: leave out raw and suffix", param="images")
        if self.think:
            raise ApiError(400, "think needs the model's chat template: leave out raw and suffix", param="think")
        if self.suffix:
            fields["suffix"] = self.suffix
        if self.logprobs or self.top_logprobs:
            fields["logprobs"] = self.top_logprobs or 0
        prompt = f"{self.system}\n{self.prompt}" if self.system and not self.raw else self.prompt
        return parse_body(CompletionBody, fields | {"prompt": prompt})
