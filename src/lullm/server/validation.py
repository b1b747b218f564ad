"""From a wire body to `SamplingParams`: what the body leaves out is the model's default."""

import math
from typing import Any

from lullm.config.sleep_after import parse_duration
from lullm.engine.protocol import EngineClient
from lullm.server.error import ApiError
from lullm.server.schema import ChatBody, CompletionBody, GenerationBody
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


def completion_params(body: CompletionBody, engine: EngineClient) -> SamplingParams:
    """Parameters of a completion request; `max_tokens` is 16, or what the model's folder says.

    `echo` with `max_tokens=0` asks for the prompt alone (its log-probabilities); the engine then draws one token
    that nobody sees. `echo` with `logprobs` needs the prompt's log-probabilities too.

    Raises:
        ApiError, InvalidRequestError: a value is out of range, or fields contradict each other.
    """
    changes = _common(body, engine)
    _check_num_logprobs("logprobs", body.logprobs, engine)
    if body.logprobs is not None:
        changes["logprobs"] = body.logprobs
        if body.echo and body.prompt_logprobs is None:
            changes["prompt_logprobs"] = body.logprobs
    if is_echo_only(body):
        changes["max_tokens"] = 1
    if body.best_of is not None:
        changes["best_of"] = body.best_of
    params = _defaults(body, engine).replace(**changes)
    if body.stream and params.num_sequences > params.n:
        raise ApiError(400, "best_of above n cannot be streamed: the best are known at the end", param="best_of")
    return params


def chat_params(body: ChatBody, engine: EngineClient) -> SamplingParams:
    """Parameters of a chat request; without a limit the answer may fill the model's length. Raises as above."""
    changes = _common(body, engine)
    changes.setdefault("max_tokens", None)
    if body.max_completion_tokens is not None:
        if body.max_tokens not in (None, body.max_completion_tokens):
            raise ApiError(
                400,
                "max_tokens is the old name of max_completion_tokens; they must not differ",
                param="max_completion_tokens",
            )
        changes["max_tokens"] = body.max_completion_tokens
    _check_num_logprobs("top_logprobs", body.top_logprobs, engine)
    if body.logprobs:
        changes["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs is not None:
        raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
    return _defaults(body, engine).replace(**changes)


def is_echo_only(body: CompletionBody) -> bool:
    return bool(body.echo) and body.max_tokens == 0


def check_priority(body: GenerationBody, engine: EngineClient) -> int:
    """The request's priority. Raises ApiError if it could have no effect."""
    if body.priority and engine.config.scheduling_policy != "priority":
        raise ApiError(
            400, "priority needs a server that was started with --scheduling-policy priority", param="priority"
        )
    return body.priority or 0


def check_keep_alive(body: GenerationBody, engine: EngineClient) -> float | None:
    """The request's `keep_alive` in seconds, which a text gives as 300, '300', '5m' or '-1'.

    Raises:
        ApiError: it is no time, or could have no effect.
    """
    value = body.keep_alive
    if value is None:
        return None
    if not engine.idle.rungs:
        raise ApiError(400, "keep_alive needs a server that was started with --sleep-after", param="keep_alive")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            raise ApiError(400, f"keep_alive: {error}", param="keep_alive") from None
    if not math.isfinite(seconds):
        raise ApiError(400, "keep_alive must be a finite number of seconds", param="keep_alive")
    return seconds


def check_num_sequences(num_prompts: int, params: SamplingParams) -> None:
    """Raises ApiError if prompts times completions are more than one request may start."""
    if num_prompts * params.num_sequences > MAX_SEQUENCES:
        raise ApiError(
            400,
            f"{num_prompts} prompts times {params.num_sequences} completions are more than {MAX_SEQUENCES}",
            param="n",
        )


def _defaults(body: GenerationBody, engine: EngineClient) -> SamplingParams:
    """The model's defaults say how to draw, and beam search does not draw."""
    return engine.default_params if body.beam_width is None else SamplingParams()


def _common(body: GenerationBody, engine: EngineClient) -> dict[str, Any]:
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(400, "prompt_logprobs cannot be streamed", param="prompt_logprobs")
    _check_num_logprobs("prompt_logprobs", body.prompt_logprobs, engine)
    if body.stream and body.beam_width is not None:
        raise ApiError(400, "beam search cannot be streamed: the best are known at the end", param="beam_width")
    changes = {name: getattr(body, name) for name in _SAME_NAME if getattr(body, name) is not None}
    changes["output_kind"] = OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY
    return changes


def _check_num_logprobs(param: str, num: int | None, engine: EngineClient) -> None:
    limit = engine.config.max_logprobs
    if num is not None and not 0 <= num <= limit:
        raise ApiError(400, f"{param} must be between 0 and {limit}, got {num}", param=param)
