"""The wire forms of llama.cpp's requests."""

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from lullm.config.generation import LLAMA_CPP, left_open
from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.server.openai.chat.conversation import Messages, PromptedBody
from lullm.server.openai.schema import CompletionBody, DialectBody
from lullm.server.wire import Strings, parse_body

_SAME_NAME = (
    *("stream", "stop", "seed", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty"),
    *("ignore_eos", "grammar", "json_schema", "keep_alive"),
)
_OFF = (None, 0, 0.0)


def _check_prompt(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and set(map(type, value)) == {int}):
        return value
    raise ValueError("must be one string or one list of token ids; send several prompts to /v1/completions")


class GenerationFields(DialectBody):
    """The common fields of completion and infill. None: not given, so the model's default or llama.cpp's applies."""

    carried: ClassVar = {
        **{name: name for name in _SAME_NAME},
        **{"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty", "n_probs": "logprobs"},
    }
    n_predict: int | None = None
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
        "n_cmpl": (None, 1),
    }

    def translated(self, engine: EngineClient) -> CompletionBody:
        fields = left_open(LLAMA_CPP, engine.stated_params) | self._carried()
        if fields.get("max_tokens", -1) < 0:
            fields["max_tokens"] = engine.config.max_model_len
        if not fields.get("logprobs"):
            fields.pop("logprobs", None)
        if self.logit_bias:
            fields["logit_bias"] = _biases(self.logit_bias)
        return parse_body(CompletionBody, fields | self._prompt())

    def _prompt(self) -> dict[str, Any]:
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
    """POST /completion."""

    prompt: Annotated[Any, AfterValidator(_check_prompt)]

    def _prompt(self) -> dict[str, Any]:
        return {"prompt": self.prompt}


class InfillBody(GenerationFields):
    """POST /infill: the text before the cursor, `prompt` on the cursor's own line, and the text after it."""

    input_prefix: str
    input_suffix: str
    prompt: str = ""

    def _prompt(self) -> dict[str, Any]:
        return {"prompt": self.input_prefix + self.prompt, "suffix": self.input_suffix}

    def field_of(self, param: str | None) -> str | None:
        return {"suffix": "input_suffix", "prompt": "input_prefix"}.get(param or "") or super().field_of(param)


class ApplyTemplateBody(PromptedBody):
    """POST /apply-template."""

    model: str | None = None
    messages: Messages
