"""From a wire body to `SamplingParams`: fields that the body leaves out get the model's defaults."""

from collections.abc import Sequence
from typing import Any

from lullm.config.option.sleep_after import parse_duration
from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.server.openai.schema import ChatBody, CompletionBody, QueuedBody
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind, SamplingParams

MAX_SEQUENCES = 4096
MAX_IDS_PER_STEP = 1 << 20

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
    "truncate_prompt_tokens",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "thinking_token_budget",
)


def sampling_params(body: CompletionBody | ChatBody, engine: EngineClient) -> SamplingParams:
    """The parameters of a body. `EngineClient.prepare` checks the limits of the engine.

    Raises:
        ApiError, InvalidRequestError: a value is out of range, or fields contradict each other.
    """
    if body.stream and body.prompt_logprobs is not None:
        raise ApiError(400, "prompt_logprobs cannot be streamed", param="prompt_logprobs")
    changes = {name: getattr(body, name) for name in _SAME_NAME if getattr(body, name) is not None}
    if (form := body.form()) is not None:
        changes["structured_outputs"] = form
    changes["output_kind"] = OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY
    changes |= _completion_changes(body) if isinstance(body, CompletionBody) else _chat_changes(body)
    for name in ("logprobs", "prompt_logprobs"):
        if changes.get(name) == -1:
            changes[name] = engine.model_config.vocab_size
    # The model's defaults are for drawing, and beam search does not draw.
    defaults = engine.default_params if body.beam_width is None else SamplingParams()
    return defaults.replace(**changes)


def _completion_changes(body: CompletionBody) -> dict[str, Any]:
    """The missing `max_tokens` is 16, or the default of the model's folder; null and -1: no limit.

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
    elif "max_tokens" in body.model_fields_set:
        changes["max_tokens"] = _limit(body.max_tokens)
    if body.best_of is not None:
        changes["best_of"] = body.best_of
    return changes


def _chat_changes(body: ChatBody) -> dict[str, Any]:
    """Without a limit the answer may fill the model's length; null and -1 mean the same."""
    given = [limit for limit in (body.max_completion_tokens, body.max_tokens) if limit is not None]
    if len(set(given)) > 1:
        raise ApiError(
            400,
            "max_tokens is the old name of max_completion_tokens; they must not differ",
            param="max_completion_tokens",
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
    changes: dict[str, Any] = {"max_tokens": _limit(given[0] if given else None)}
    if body.logprobs:
        changes["logprobs"] = body.top_logprobs or 0
    return changes


def _limit(max_tokens: int | None) -> int | None:
    return None if max_tokens == -1 else max_tokens


def check_priority(body: QueuedBody, engine: EngineClient) -> int:
    """The request's priority. Raises ApiError if it could have no effect."""
    if body.priority and engine.config.scheduling_policy != "priority":
        raise ApiError(
            400, "priority needs a server that was started with --scheduling-policy priority", param="priority"
        )
    return body.priority or 0


def keep_alive_s(body: QueuedBody) -> float | None:
    """The request's `keep_alive` in seconds: 300, '300', '5m' or '-1'.

    Raises:
        ApiError: it is not a time. The engine checks whether it can have an effect.
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


def check_num_sequences(num_prompts: int, params: SamplingParams, max_num_seqs: int) -> None:
    """Raises ApiError if prompts times completions are more than one request may start, or one prompt's than can run.

    The engine checks the latter too; but its thread may be in a long step, and a stream's headers do not wait for it.
    """
    if params.num_sequences > max_num_seqs:
        raise ApiError(
            400,
            f"{params.num_sequences} sequences of a prompt cannot run at once here, at most {max_num_seqs} can "
            "(--max-num-seqs)",
            param="n" if params.n == params.num_sequences else "beam_width" if params.beam_width else "best_of",
        )
    if num_prompts * params.num_sequences > MAX_SEQUENCES:
        raise ApiError(
            400,
            f"{num_prompts} prompts times {params.num_sequences} completions are more than {MAX_SEQUENCES}",
            param="n",
        )


def check_token_lists(num_prompts: int, params: SamplingParams, max_num_seqs: int) -> None:
    """Raises ApiError if every draw of a step would have to look at too many token ids.

    128 sequences with a bias for each of 150,000 tokens would take seconds and hundreds of megabytes in every step.
    """
    num_draws = min(num_prompts * params.num_sequences, max_num_seqs)
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        num_ids = len(getattr(params, name) or ())
        if num_draws * num_ids > MAX_IDS_PER_STEP:
            raise ApiError(
                400,
                f"{num_draws} sequences at once with {num_ids} token ids in {name} are {num_draws * num_ids} ids in "
                f"every step, more than {MAX_IDS_PER_STEP}; ask for fewer completions, or name fewer tokens",
                param=name,
            )


def check_num_logprobs(
    body: CompletionBody | ChatBody, requests: Sequence[GenerateRequest], max_model_len: int, limit: int
) -> None:
    """Raises ApiError if the answer could hold more than `limit` log-probabilities; an echoed token counts as one.

    A body of 169 bytes asked for 28 million: 16 prompts x 256 completions x 21 at each of 320 tokens.
    """
    total = longest = 0
    for request in requests:
        params, num_prompt = request.params, len(request.prompt_token_ids)
        num_output = min(params.max_tokens or max_model_len, max_model_len - num_prompt)
        num_each = body.num_prompt_copies * num_prompt
        num_tokens = 0  # of one sequence, with log-probabilities
        if params.logprobs is not None:
            total += params.num_sequences * num_output * (params.logprobs + 1)
            num_tokens += num_output
        if params.prompt_logprobs is not None:
            total += num_each * (params.prompt_logprobs + 1)
            num_tokens += num_prompt
        elif isinstance(body, CompletionBody) and body.echo:
            total += num_each
            num_tokens += num_prompt
        longest = max(longest, num_tokens)
    if total > limit:
        raise _too_many_logprobs(body, requests, total, longest, limit)


def _too_many_logprobs(
    body: CompletionBody | ChatBody, requests: Sequence[GenerateRequest], total: int, longest: int, limit: int
) -> ApiError:
    params = requests[0].params
    num_best = max(params.logprobs or 0, params.prompt_logprobs or 0)
    names = [name for name in ("logprobs", "prompt_logprobs") if getattr(params, name) is not None]
    return ApiError(
        400,
        f"the answer could hold {total} log-probabilities: {len(requests)} prompts x {params.num_sequences} "
        f"completions x {num_best + 1} at each of up to {longest} tokens; one request may have {limit} "
        "(--max-request-logprobs). Ask for fewer completions or log-probabilities, or for a smaller max_tokens",
        param=body.field_of(names[0]) if names else "echo",
        code="too_many_logprobs",
    )
