"""What a caller gets back: `RequestOutput` with its `CompletionOutput`s and `Logprob`s. All of them pickle."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability at one position; `rank` 1 is the most likely token of the vocabulary."""

    logprob: float
    rank: int
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id -> Logprob for one position; the chosen token is always in it, and comes first."""


@dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of `time.monotonic()`; None while they have not."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None

    @property
    def time_in_queue(self) -> float | None:
        """Seconds from arrival until the request was first scheduled."""
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time


KV_CACHE_FULL = "kv_cache_full"
"""The stop reason of a completion that outgrew the KV cache before its length or the model's was reached."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a request.

    `finish_reason` is None while it runs, then 'stop', 'length' or 'abort'; `stop_reason` is the stop string or the
    stop token id that ended it, None for the model's own end-of-sequence token. With 'length' it is KV_CACHE_FULL if
    the request, alone, needed more KV blocks than there are. `cumulative_logprob` and `logprobs` are None unless
    log-probabilities were asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """What is known of a request after a step. `finished` is True exactly once, in its last output.

    `prompt_logprobs` has one entry per prompt token, None for the first. `num_cached_tokens`: prompt tokens whose
    KV came from the prefix cache when the request was first scheduled.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: list[PositionLogprobs | None] | None = None
