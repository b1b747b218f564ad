"""The wire forms of llama.cpp's requests."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from lullm.config.generation import LLAMA_CPP, left_open
from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.server.openai.chat.conversation import Messages, PromptedBody
from lullm.server.openai.schema import MAX_PROMPTS, CompletionBody, DialectBody
from lullm.server.wire import Strings, parse_body

_SAME_NAME = (
    *("stream", "stop", "seed", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty"),
    *("ignore_eos", "grammar", "json_schema", "keep_alive"),
)
_OFF = (None, 0, 0.0)


Mixed = str | list[int | str]
"""A prompt: a text, or token ids with texts among them."""


def _read_prompts(value: Any) -> list[Mixed]:
    """The prompts of a field that has one or several. Raises ValueError."""
    if not isinstance(value, list) or {int} & set(map(type, value)):
        return [_read_prompt(value)]
    if not 1 <= len(value) <= MAX_PROMPTS:
        raise ValueError(f"must have 1 to {MAX_PROMPTS} prompts, got {len(value)}")
    return [_read_prompt(each) for each in value]


def _read_prompt(value: Any) -> Mixed:
    if isinstance(value, dict) and value.keys() <= {"prompt_string", "multimodal_data"}:
        if value.get("multimodal_data"):
            raise ValueError("has no pictures or sounds here: send them in a chat")
        value = value.get("prompt_string")
    if isinstance(value, str) or (isinstance(value, list) and value and set(map(type, value)) <= {int, str}):
        return value
    raise ValueError(
        "must be a string, a list of token ids and strings, an object with prompt_string, or several in a list"
    )


class GenerationFields(DialectBody):
    """The common fields of completion and infill. None: not given, so the model's default or llama.cpp's applies."""

    carried: ClassVar = {
        **{name: name for name in _SAME_NAME},
        **{"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty", "n_probs": "logprobs", "n_cmpl": "n"},
    }
    n_predict: int | None = None
    n_cmpl: int | None = None
    stream: bool = False
    stop: str | Strings | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool | None = None
    logit_bias: Any = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    n_probs: int | None = None
    return_tokens: bool = False
    # Ollama's, as at the other endpoints
    keep_alive: float | str | None = None
    missing: ClassVar = {
        "mirostat": (None, 0),
        "typical_p": (None, 1, 1.0),
        "dynatemp_range": _OFF,
        "xtc_probability": _OFF,
        "dry_multiplier": _OFF,
        "top_n_sigma": (None, -1, -1.0),
        "post_sampling_probs": (None, False),
        "lora": (None, []),
    }

    def translated(self, engine: EngineClient) -> CompletionBody:
        fields = left_open(LLAMA_CPP, engine.stated_params) | self._carried()
        if fields.get("max_tokens", -1) < 0:
            fields["max_tokens"] = engine.config.max_model_len
        if not fields.get("logprobs"):
            fields.pop("logprobs", None)
        if self.logit_bias:
            fields["logit_bias"] = _biases(self.logit_bias)
        return parse_body(CompletionBody, fields | self._prompt(engine))

    def _prompt(self, engine: EngineClient) -> dict[str, Any]:
        """OpenAI's fields for the prompt."""
        raise NotImplementedError


def _biases(given: Any) -> dict[Any, Any]:
    """OpenAI's form: token id -> bias. False, which forbids a token, becomes the lowest one."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        raise ApiError(400, "logit_bias must be a list of pairs [token id, bias], or an object", param="logit_bias")
    return {token_id: -100.0 if bias is False else bias for token_id, bias in pairs}


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], int | str)


class LlamaCompletionBody(GenerationFields):
    """POST /completion. `prompt`: one, or several in a list."""

    prompt: Annotated[Any, AfterValidator(_read_prompts)]

    def _prompt(self, engine: EngineClient) -> dict[str, Any]:
        if all(isinstance(each, str) for each in self.prompt):
            return {"prompt": self.prompt}
        return {"prompt": [_token_ids(each, engine) for each in self.prompt]}


def _token_ids(prompt: Mixed, engine: EngineClient) -> list[int]:
    """The tokens of a prompt; those that begin every text come only if it begins with one."""
    tokenizer = engine.tokenizer
    encode = tokenizer.encode_as_text if engine.config.split_special_tokens else tokenizer.encode
    token_ids: list[int] = []
    for number, part in enumerate([prompt] if isinstance(prompt, str) else prompt):
        token_ids += [part] if isinstance(part, int) else encode(part, number == 0)
    return token_ids


class InfillBody(GenerationFields):
    """POST /infill: the text before the cursor, `prompt` on the cursor's own line, and the text after it."""

    input_prefix: str
    input_suffix: str
    prompt: str = ""

    def _prompt(self, engine: EngineClient) -> dict[str, Any]:
        return {"prompt": self.input_prefix + self.prompt, "suffix": self.input_suffix}

    def field_of(self, param: str | None) -> str | None:
        return {"suffix": "input_suffix", "prompt": "input_prefix"}.get(param or "") or super().field_of(param)


class ApplyTemplateBody(PromptedBody):
    """POST /apply-template."""

    model: str | None = None
    messages: Messages
