"""Outputs for callers: `RequestOutput` with its `CompletionOutput`s and `Logprob`s. All of them pickle."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, overload

from lullm.types.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability at one position; `rank` 1 is the most likely token of the vocabulary."""

    logprob: float
    rank: int
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]
"""Token id -> Logprob for one position. It always has the chosen token, which comes first."""

Position = TypeVar("Position", bound=PositionLogprobs | None, covariant=True)


class LogprobRows:
    """The `TokenLogprobs` of consecutive positions in arrays: 12 bytes an entry; a `Logprob` in a dict takes 210.

    Only appended to. Log-probabilities are float32, as the sampler computes them.
    """

    __slots__ = ("_ends", "_logprobs", "_ranks", "_token_ids")

    def __init__(self) -> None:
        self.clear()

    def append(self, row: TokenLogprobs) -> None:
        """Add a position; `row` has at least one entry."""
        token_ids, logprobs, ranks = zip(*row, strict=True)
        self._token_ids.extend(token_ids)
        self._logprobs.extend(logprobs)
        self._ranks.extend(ranks)
        self._ends.append(len(self._token_ids))

    def extend(self, rows: Iterable[TokenLogprobs]) -> None:
        """Add positions."""
        for row in rows:
            self.append(row)

    def clear(self) -> None:
        """Remove all positions."""
        self._token_ids, self._logprobs, self._ranks = array("i"), array("f"), array("i")
        self._ends = array("q")

    def to_bytes(self) -> tuple[bytes, bytes, bytes, bytes]:
        """The arrays, for a process of the same machine."""
        return tuple(  # type: ignore[return-value]  # four of them
            each.tobytes() for each in (self._token_ids, self._logprobs, self._ranks, self._ends)
        )

    @classmethod
    def from_bytes(cls, arrays: tuple[bytes, bytes, bytes, bytes]) -> "LogprobRows":
        """The reverse of `to_bytes`."""
        rows = cls()
        for array_, data in zip((rows._token_ids, rows._logprobs, rows._ranks, rows._ends), arrays, strict=True):
            array_.frombytes(data)  # type: ignore[attr-defined]
        return rows

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: int) -> TokenLogprobs:
        end = self._ends[place]
        part = slice(self._ends[place - 1] if place else 0, end)
        return tuple(zip(self._token_ids[part], self._logprobs[part], self._ranks[part], strict=True))


class LogprobList(Sequence[Position], Generic[Position]):
    """Log-probabilities by position, like a list of dicts. Reading a position makes its dict.

    Args:
        rows: the data.
        places: the rows to show, in order; -1: a position that has None.
        text_of: a token's text, for `Logprob.decoded_token`.
    """

    __slots__ = ("_places", "_rows", "_text_of")

    def __init__(self, rows: LogprobRows, places: range, text_of: Callable[[int], str]):
        self._rows = rows
        self._places = places
        self._text_of = text_of

    @property
    def rows(self) -> LogprobRows:
        """The data; in an output fresh from an engine the list shows all of it."""
        return self._rows

    @property
    def has_first_none(self) -> bool:
        """Whether the first position has no log-probabilities, as the first of a prompt."""
        return self._places.start < 0

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> "LogprobList[Position]": ...
    def __getitem__(self, index: int | slice) -> "Position | LogprobList[Position]":
        place = self._places[index]
        if isinstance(place, range):
            return LogprobList(self._rows, place, self._text_of)
        if place < 0:
            return cast(Position, None)
        text_of = self._text_of
        position = {token_id: Logprob(value, rank, text_of(token_id)) for token_id, value, rank in self._rows[place]}
        return cast(Position, position)

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Any]) -> list[Any]:
        return [*other, *self]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, tuple, LogprobList)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(list(self))

    def absorb(self, later: "LogprobList[Position]") -> None:
        """Append the positions of `later`. Only for the sole reader of these rows, when this list shows all of them."""
        for place in later._places:
            self._rows.append(later._rows[place])
        self._places = range(self._places.start, len(self._rows))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied as a plain list, without the function for tokens' texts."""
        return list, (list(self),)


@dataclass(slots=True)
class RequestMetrics:
    """The times of a request's events, in seconds of `time.monotonic()`; None before the event."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None

    @property
    def times(self) -> tuple[float, float | None, float | None, float | None, float | None]:
        """The fields, in their order."""
        started, last = (self.arrival_time, self.first_scheduled_time), (self.last_token_time, self.finished_time)
        return *started, self.first_token_time, *last

    @property
    def time_in_queue(self) -> float | None:
        """Seconds from arrival until the request was first scheduled."""
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time

    @property
    def scheduled_ts(self) -> float:
        """vLLM's name of `first_scheduled_time`; 0 before the event, as in the names below."""
        return self.first_scheduled_time or 0.0

    @property
    def queued_ts(self) -> float:
        """vLLM's name of `arrival_time`."""
        return self.arrival_time

    @property
    def first_token_ts(self) -> float:
        """vLLM's name of `first_token_time`."""
        return self.first_token_time or 0.0

    @property
    def last_token_ts(self) -> float:
        """vLLM's name of `last_token_time`."""
        return self.last_token_time or 0.0

    @property
    def first_token_latency(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first_token_ts - self.arrival_time if self.first_token_time is not None else 0.0


KV_CACHE_FULL = "kv_cache_full"
"""The stop reason of a completion that outgrew the KV cache before it reached a length limit."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a request.

    `finish_reason` is None while it runs, then 'stop', 'length' or 'abort'. `stop_reason` is the stop string or the
    stop token id that ended it, None for the model's own end-of-sequence token. With 'length' it is KV_CACHE_FULL if
    the request alone needed more KV blocks than exist. `cumulative_logprob` and `logprobs` are None unless the request
    asks for log-probabilities.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Sequence[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether it has ended."""
        return self.finish_reason is not None

    def absorb(self, later: "CompletionOutput") -> None:
        """Append the next delta."""
        self.text += later.text
        self.token_ids.extend(later.token_ids)
        self.cumulative_logprob = later.cumulative_logprob
        if isinstance(self.logprobs, LogprobList) and isinstance(later.logprobs, LogprobList):
            self.logprobs.absorb(later.logprobs)
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason


@dataclass(slots=True)
class RequestOutput:
    """The state of a request after a step. `finished` is True exactly once, in its last output.

    `prompt_logprobs` has one entry per prompt token, None for the first. `num_cached_tokens`: prompt tokens whose KV
    came from the prefix cache when the request was first scheduled.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: Sequence[PositionLogprobs | None] | None = None

    def absorb(self, later: "RequestOutput") -> None:
        """Append the next delta, so that this output holds both. Does not change `later`."""
        own = {completion.index: completion for completion in self.outputs}
        for completion in later.outputs:
            if completion.index in own:
                own[completion.index].absorb(completion)
            else:
                self.outputs.append(completion)
        self.finished, self.metrics, self.num_cached_tokens = later.finished, later.metrics, later.num_cached_tokens
        self.prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs
