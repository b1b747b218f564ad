"""The wire forms of requests for text: OpenAI's fields, vLLM's extensions, Ollama's `keep_alive`."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.server.gate.gate import REQUEST_ID
from lullm.server.openai.chat.conversation import Messages, PromptedBody, ReplyBody, conversation
from lullm.server.openai.structured import StructuredBody
from lullm.server.wire import Strings, TokenIds, WireModel
from lullm.types.request import Conversation, Prompt, TextPrompt, TokensPrompt

MAX_PROMPTS = 4096
_PROMPT_RULE = (
    "must be a string, a list of strings, a list of token ids or a list of lists of token ids, and no list empty"
)


def _check_prompt(value: Any) -> Any:
    if isinstance(value, str):
        return value
    kinds = set(map(type, value)) if isinstance(value, list) else set()
    if kinds == {int}:
        return value
    if kinds == {str} or (kinds == {list} and all(set(map(type, item)) == {int} for item in value)):
        if len(value) > MAX_PROMPTS:
            raise ValueError(f"at most {MAX_PROMPTS} prompts may stand in one request, got {len(value)}")
        return value
    raise ValueError(_PROMPT_RULE)


Prompts = Annotated[Any, AfterValidator(_check_prompt)]


def _num_logprobs(value: Any) -> Any:
    return {True: 1, False: None}[value] if isinstance(value, bool) else value


NumLogprobs = Annotated[int | None, BeforeValidator(_num_logprobs)]
"""How many of the best; -1: all; vLLM's clients also send true for 1, and false."""

RequestId = Annotated[str, Field(pattern=f"^{REQUEST_ID}$")]


class EventOptions(WireModel):
    """`include_obfuscation` has no effect: events are not padded."""

    include_obfuscation: bool | None = None


class StreamOptions(EventOptions):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class QueuedBody(WireModel):
    """The fields of every request to the engine. None: not given."""

    model: str | None = None
    priority: int | None = None
    # Ollama's
    keep_alive: float | str | None = None


class DialectBody(WireModel):
    """A request for text in any dialect, as the one handler reads it.

    Attributes:
        carried: a field here -> OpenAI's with the same meaning and values.
        blamed: OpenAI's or the engine's parameter -> the field here that an error about it names; beside `carried`.
    """

    carried: ClassVar[Mapping[str, str]] = {}
    blamed: ClassVar[Mapping[str, str]] = {}
    model: str | None = None

    def translated(self, engine: EngineClient) -> "CompletionBody | ChatBody":
        """The same request in OpenAI's form. Raises ApiError: OpenAI's form cannot express it."""
        raise NotImplementedError

    def field_of(self, param: str | None) -> str | None:
        """The body's field for OpenAI's or the engine's parameter of that name."""
        names = {theirs: own for own, theirs in self.carried.items()} | dict(self.blamed)
        return names.get(param or "", param)

    def _carried(self) -> dict[str, Any]:
        """OpenAI's fields for given fields with the same meaning."""
        pairs = ((theirs, getattr(self, own)) for own, theirs in self.carried.items())
        return {theirs: value for theirs, value in pairs if value is not None}


class GenerationBody(StructuredBody, QueuedBody, DialectBody):
    """The common fields of completions and chat. None: not given, so the model's default applies."""

    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | Strings | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # Its entries are checked by SamplingParams, which stops at the first bad one.
    logit_bias: dict[Any, Any] | None = None
    max_tokens: int | None = None
    # vLLM's extensions
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stop_token_ids: TokenIds | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Strings | None = None
    prompt_logprobs: NumLogprobs = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None
    request_id: RequestId | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    thinking_token_budget: int | None = None
    # transformers'
    split_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream=true", param="stream_options")
        return self

    @property
    def wants_usage(self) -> bool:
        """Whether a last chunk of a stream has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def wants_running_usage(self) -> bool:
        """Whether every chunk of a stream has the usage."""
        return bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def num_prompt_copies(self) -> int:
        """How many times the answer repeats its data of a prompt."""
        return 1

    def field_of(self, param: str | None) -> str | None:
        return self.form_field() if param == "structured_outputs" else param


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Prompts | None = None
    # vLLM's: files of rows in base64, answered before `prompt`
    prompt_embeds: str | Strings | None = None
    suffix: str | None = None
    # vLLM's
    add_special_tokens: bool | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: NumLogprobs = None

    @model_validator(mode="after")
    def _check_content(self) -> "CompletionBody":
        if self.prompt is None and not self.prompt_embeds:
            rule = _PROMPT_RULE if "prompt" in self.model_fields_set else "is required"
            raise ApiError(400, f"prompt {rule}; or send prompt_embeds", param="prompt")
        if self.prompt_embeds and self.echo:
            raise ApiError(400, "echo repeats a prompt's text, and prompt_embeds have none", param="echo")
        if isinstance(self.prompt_embeds, list) and len(self.prompt_embeds) > MAX_PROMPTS:
            raise ApiError(400, f"at most {MAX_PROMPTS} prompts may stand in one request", param="prompt_embeds")
        return self

    def translated(self, engine: EngineClient) -> "CompletionBody":
        return self

    @property
    def is_echo_only(self) -> bool:
        """Whether the request asks for the prompt alone."""
        return bool(self.echo) and self.max_tokens == 0

    @property
    def num_prompt_copies(self) -> int:
        """How many times the answer repeats its data of a prompt: every choice has it."""
        return self.n or 1

    def prompts(self) -> list[Prompt]:
        """The prompts; a body may hold one or several."""
        given = [self.prompt_embeds] if isinstance(self.prompt_embeds, str) else self.prompt_embeds or []
        rows: list[Prompt] = [{"prompt_embeds": file, "cache_salt": self.cache_salt} for file in given]
        if self.prompt is None:
            return [_with_suffix(prompt, self.suffix) for prompt in rows] if self.suffix else rows
        prompts = several_prompts(self.prompt, self.split_special_tokens, self.cache_salt, self.add_special_tokens)
        return rows + ([_with_suffix(prompt, self.suffix) for prompt in prompts] if self.suffix else prompts)


def _with_suffix(prompt: Prompt, suffix: str) -> Prompt:
    """The prompt with the suffix. Raises ApiError: the prompt is not text."""
    if isinstance(prompt, str):
        return {"prompt": prompt, "suffix": suffix}
    if not isinstance(prompt, dict) or "prompt" not in prompt:
        raise ApiError(400, "suffix needs a prompt of text", param="suffix")
    return {**cast(TextPrompt, prompt), "suffix": suffix}


def several_prompts(
    given: Any, split_special_tokens: bool | None, cache_salt: str | None = None, add_special_tokens: bool | None = None
) -> list[Prompt]:
    """The prompts of a field of the type `Prompts`, in the engine's form. Raises ApiError: an option is for texts."""
    several = isinstance(given, list) and not isinstance(given[0], int)
    prompts: list[Prompt] = given if several else [given]
    return [plain_prompt(prompt, split_special_tokens, cache_salt, add_special_tokens) for prompt in prompts]


def plain_prompt(
    prompt: Prompt,
    split_special_tokens: bool | None,
    cache_salt: str | None = None,
    add_special_tokens: bool | None = None,
) -> Prompt:
    """A prompt in the engine's form. Raises ApiError: an option is for a text."""
    of_text = {"split_special_tokens": split_special_tokens, "add_special_tokens": add_special_tokens}
    given = {name: value for name, value in of_text.items() if value is not None}
    if not given and cache_salt is None:
        return prompt
    if isinstance(prompt, str):
        return cast(TextPrompt, {"prompt": prompt, "cache_salt": cache_salt, **given})
    for name in given:
        raise ApiError(400, f"{name} is for prompts of text", param=name)
    return cast(TokensPrompt, {"prompt_token_ids": prompt, "cache_salt": cache_salt})


class ChatBody(ReplyBody, GenerationBody):
    """POST /v1/chat/completions."""

    missing: ClassVar = {"add_special_tokens": (None, False)}

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    echo: bool | None = None

    @property
    def echoed(self) -> str:
        """The text of the conversation that the answer begins with: the last message, if it is the assistant's."""
        content = self.messages[-1].for_template()["content"]
        return content or "" if self.echo and self.messages[-1].role == "assistant" else ""

    def translated(self, engine: EngineClient) -> "ChatBody":
        return self

    def field_of(self, param: str | None) -> str | None:
        return "top_logprobs" if param == "logprobs" else super().field_of(param)

    def prompts(self) -> list[Conversation]:
        """The one conversation."""
        options, calls = self.template_options(), self.call_rules()
        asked = conversation(self.messages, self.split_special_tokens, options, calls, self.mm_processor_kwargs)
        return [dataclasses.replace(asked, cache_salt=self.cache_salt)]


class TokenizeBody(PromptedBody):
    """POST /tokenize: a `prompt`, or `messages` through the chat template; or llama.cpp's `content`."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    split_special_tokens: bool | None = None
    return_token_strs: bool = False
    # llama.cpp's
    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(WireModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds
