"""The OpenAI wire forms of requests, as pydantic models, and the one way from a body's bytes to a model.

Types are checked strictly here; ranges are the business of `SamplingParams`. A field is taken, or refused with 400:

- `INERT` fields cannot change the result and are accepted without effect;
- `MISSING` fields ask for machinery that does not exist: only the values that ask for nothing pass;
- every other unknown field is refused, so that a misspelt one does not go unnoticed.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from lullm.server.error import ApiError
from lullm.types.request import Conversation, Prompt
from lullm.types.sleep import BackupTarget, SleepMode

INERT = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"})

_TEXT_FORMAT = {"type": "text"}
MISSING: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "functions": (None, []),
    "function_call": (None, "none"),
    "response_format": (None, _TEXT_FORMAT),
    "suffix": (None, ""),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None,),
    "web_search_options": (None,),
    "service_tier": (None, "auto", "default"),
    "use_beam_search": (None, False),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_decoding_backend": (None,),
    "guided_whitespace_pattern": (None,),
}
"""Field -> the values of it that ask for nothing."""

_FAIL_FAST = Field(fail_fast=True)  # one error per bad entry would be a million in a large body

MAX_PROMPTS = 4096
MAX_FIELDS = 128


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
    raise ValueError(
        "must be a string, a list of strings, a list of token ids or a list of lists of token ids, and no list empty"
    )


Prompts = Annotated[Any, AfterValidator(_check_prompt)]
Strings = Annotated[list[str], _FAIL_FAST]
TokenIds = Annotated[list[int], _FAIL_FAST]


class WireModel(BaseModel):
    """A JSON object: exact types, no unknown fields, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _bound_fields(cls, data: Any) -> Any:
        # One error is collected per unknown field, and a body has room for a million of them.
        if isinstance(data, dict) and len(data) > MAX_FIELDS:
            raise ValueError(f"an object here has at most {MAX_FIELDS} fields, got {len(data)}")
        return data


class StreamOptions(WireModel):
    include_usage: bool | None = None


class GenerationBody(WireModel):
    """What completions and chat have in common. None: not given, the model's default applies."""

    model: str | None = None
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
    prompt_logprobs: int | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    priority: int | None = None
    # Ollama's
    keep_alive: float | str | None = None

    @model_validator(mode="after")
    def _check_stream_options(self) -> "GenerationBody":
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream=true", param="stream_options")
        return self

    @property
    def wants_usage(self) -> bool:
        """Whether a last chunk of a stream has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def field_of(self, param: str | None) -> str | None:
        """The body's field for the engine's parameter of that name."""
        return param


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Prompts
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None

    @property
    def is_echo_only(self) -> bool:
        """Whether the prompt alone is asked for."""
        return bool(self.echo) and self.max_tokens == 0

    def prompts(self) -> list[Prompt]:
        """The prompts, of which a body may hold one or several."""
        several = isinstance(self.prompt, list) and not isinstance(self.prompt[0], int)
        return self.prompt if several else [self.prompt]


class TextPart(WireModel):
    type: Literal["text"]
    text: str


class ChatMessage(WireModel):
    """One turn. Fields that are null or empty, as clients send them back from an answer, are dropped."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], _FAIL_FAST]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {key: value for key, value in data.items() if key == "content" or value not in (None, [])}

    def for_template(self) -> dict[str, str]:
        """As chat templates want it: text parts joined by newlines; 'developer' is the newer word for 'system'."""
        content = self.content if isinstance(self.content, str) else "\n".join(part.text for part in self.content)
        message = {"role": "system" if self.role == "developer" else self.role, "content": content}
        return message if self.name is None else message | {"name": self.name}


Messages = Annotated[list[ChatMessage], _FAIL_FAST]


def conversation(messages: list[ChatMessage], **options: Any) -> Conversation:
    """Messages as the engine takes them."""
    return Conversation([message.for_template() for message in messages], options)


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def field_of(self, param: str | None) -> str | None:
        """The body's field for the engine's parameter of that name."""
        return "top_logprobs" if param == "logprobs" else param

    def prompts(self) -> list[Conversation]:
        """The one conversation."""
        return [conversation(self.messages)]


def _check_tags(tags: list[str] | None) -> list[str] | None:
    if tags == []:
        raise ValueError("must name at least one; leave it out for all")
    return tags


Tags = Annotated[Strings | None, AfterValidator(_check_tags)]


class ExplainBody(WireModel):
    """GET /sleep/explain. Which levels and tags there are is the engine's business."""

    level: int = 1
    tags: Tags = None
    backup: BackupTarget = "auto"
    keep_prefix_cache: bool = False


class SleepBody(ExplainBody):
    """POST /sleep."""

    mode: SleepMode = "keep"


class PauseBody(WireModel):
    """POST /pause."""

    mode: SleepMode = "abort"
    clear_cache: bool = True


class EmptyBody(WireModel):
    """A call without arguments."""


class RemoteCallBody(WireModel):
    """POST /collective_rpc. Which methods may be called is checked against `REMOTE_METHODS`."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: float | None = None


class TagsBody(WireModel):
    """POST /wake_up, and the endpoints of other servers that do the same."""

    tags: Tags = None


class TokenizeBody(WireModel):
    """POST /tokenize: a `prompt`, or `messages` through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeBody(WireModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: TokenIds


Body = TypeVar("Body", bound=WireModel)


def parse_body(kind: type[Body], body: bytes | dict[str, Any]) -> Body:
    """A request's body, or the fields of its query, as `kind`.

    Raises:
        ApiError: 400, naming the first offending field.
    """
    data = _read_json(body) if isinstance(body, bytes) else body
    for field, harmless in MISSING.items():
        if field in data:
            value = data.pop(field)
            if not any(type(value) is type(ok) and value == ok for ok in harmless):
                raise ApiError(400, f"{field} is not supported by this server", param=field, code="unsupported_field")
    for field in INERT & data.keys():
        del data[field]
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _first_problem(error) from None


def _read_json(raw: bytes) -> dict[str, Any]:
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return data


def _first_problem(error: ValidationError) -> ApiError:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    location = problem["loc"]
    path = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        message, code = f"unknown field {path!r}", "unknown_field"
    elif problem["type"] == "missing":
        message, code = f"{path} is required", "missing_field"
    else:
        message, code = f"{path}: {problem['msg'].removeprefix('Value error, ')}", "invalid_value"
    return ApiError(400, message, param=str(location[0]) if location else None, code=code)
