"""From a wire body to `SamplingParams`: fields that the body leaves out have the model's defaults."""

from typing import Any

from lullm.config.sleep_after import parse_duration
from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.server.openai.schema import ChatBody, CompletionBody, GenerationBody
from lullm.types.sampling_params import OutputKind, SamplingParams

MAX_SEQUENCES = 4096

_SAME_NAME = (
    "n",
    "stop",
    "seed",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "max_tokens",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "min_tokens",
    "stop_token_ids",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "allowed_token_ids",
    "bad_words",
    "prompt_logprobs",
    "beam_width",
    "length_penalty",
    "early_stopping",
)


def sampling_params(body: CompletionBody | ChatBody, engine: EngineClient) -> SamplingParams:
    """The parameters that a body asks for. Limits of the engine are checked by `EngineClient.prepare`.

    Raises:
        ApiError, InvalidRequestError: a value is out of range, or fields contradict each other.
    """
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(400, "prompt_logprobs cannot be streamed", param="prompt_logprobs")
    changes = {name: getattr(body, name) for name in _SAME_NAME if getattr(body, name) is not None}
    changes["output_kind"] = OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY
    changes |= _completion_changes(body) if isinstance(body, CompletionBody) else _chat_changes(body)
    # The model's defaults say how to draw, and beam search does not draw.
    defaults = engine.default_params if body.beam_width is None else SamplingParams()
    return defaults.replace(**changes)


def _completion_changes(body: CompletionBody) -> dict[str, Any]:
    """`max_tokens` is 16 if it is left out, or the default of the model's folder.

    `echo` with `max_tokens=0` asks for the prompt alone (its log-probabilities); the engine then draws one token that
    is not shown. `echo` with `logprobs` needs the prompt's log-probabilities too.
    """
    changes: dict[str, Any] = {}
    if body.logprobs is not None:
        changes["logprobs"] = body.logprobs
        if body.echo and body.prompt_logprobs is None:
            changes["prompt_logprobs"] = body.logprobs
    if body.is_echo_only:
        changes["max_tokens"] = 1
    if body.best_of is not None:
        changes["best_of"] = body.best_of
    return changes


def _chat_changes(body: ChatBody) -> dict[str, Any]:
    """Without a limit the answer may fill the model's length."""
    if body.max_completion_tokens is not None and body.max_tokens not in (None, body.max_completion_tokens):
        raise ApiError(
            400,
            "max_tokens is the old name of max_completion_tokens; they must not differ",
            param="max_completion_tokens",
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
    changes: dict[str, Any] = {"max_tokens": body.max_completion_tokens if body.max_tokens is None else body.max_tokens}
    if body.logprobs:
        changes["logprobs"] = body.top_logprobs or 0
    return changes


def check_priority(body: GenerationBody, engine: EngineClient) -> int:
    """The request's priority. Raises ApiError if it could have no effect."""
    if body.priority and engine.config.scheduling_policy != "priority":
        raise ApiError(
            400, "priority needs a server that was started with --scheduling-policy priority", param="priority"
        )
    return body.priority or 0


def keep_alive_s(body: GenerationBody) -> float | None:
    """The request's `keep_alive` in seconds, which a text gives as 300, '300', '5m' or '-1'.

    Raises:
        ApiError: it is no time. Whether it can have an effect is for the engine to say.
    """
    value = body.keep_alive
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        try:
            return parse_duration(str(value))
        except ValueError as error:
            raise ApiError(400, f"keep_alive: {error}", param="keep_alive") from None


def check_num_sequences(num_prompts: int, params: SamplingParams) -> None:
    """Raises ApiError if prompts times completions are more than one request may start."""
    if num_prompts * params.num_sequences > MAX_SEQUENCES:
        raise ApiError(
            400,
            f"{num_prompts} prompts times {params.num_sequences} completions are more than {MAX_SEQUENCES}",
            param="n",
        )
