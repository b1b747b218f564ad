"""Messages between an engine's process and its callers' process: MessagePack, fields by position.

Both sides are the same version of lullm on the same machine: one starts the other.
"""

from typing import Any

import msgspec

from lullm.config.option.sleep_after import SleepRung
from lullm.types.guided.params import Guide
from lullm.types.guided.rules import NO_RULES, TokenRules
from lullm.types.monitor.stats import EngineStats
from lullm.types.pooling.params import Pooling
from lullm.types.reply.rules import ThinkingTokens
from lullm.types.sleep import SleepEvent, SleepState
from lullm.types.vision.tile import TilePlace
from lullm.types.wire.plain_error import PlainError

HERE = "the engine's process"
"""The place that errors of the engine's process name."""


class Message(msgspec.Struct, array_like=True, gc=False):
    """One message. Its class is named by the first element."""


class WireRequest(Message):
    """A `GenerateRequest` without the parts that only its caller reads. Texts may hold lone surrogates, and come as
    bytes.

    `params`: the values that differ from the defaults of `SamplingParams`.
    """

    request_id: str
    token_ids: list[int]
    params: dict[str, Any]
    seed: int
    arrival_time: float
    priority: int = 0
    end_token_ids: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    pooling: Pooling | None = None
    guide: Guide | None = None
    cache_salt: bytes = b""
    thinking: ThinkingTokens | None = None
    shown_token_ids: tuple[int, ...] = ()
    lora: tuple[str, int, str] | None = None
    adapter_digest: bytes = b""
    tiles: tuple[TilePlace, ...] = ()
    encoded: TilePlace | None = None
    rules: TokenRules = NO_RULES
    second_text: int | None = None


class WireRows(Message):
    """Log-probabilities by position: the arrays of `LogprobRows`. `has_first_none`: the first position has none."""

    arrays: tuple[bytes, bytes, bytes, bytes]
    has_first_none: bool = False


class WireCompletion(Message):
    """A `CompletionOutput`."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: WireRows | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class WireOutput(Message):
    """A `RequestOutput` without the facts of its request, or a `PoolingRequestOutput` (`vector`, or `table`).

    `times`: the fields of `RequestMetrics`, in their order.
    """

    serial: int
    completions: list[WireCompletion]
    finished: bool
    times: tuple[float | None, ...] | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: WireRows | None = None
    vector: list[float] | None = None
    table: tuple[int, bytearray] | None = None  # `TokenTable`; that module loads numpy
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Status(Message):
    """Facts that callers read without waiting. Times are of `time.monotonic()`.

    `idle_since`: None while a request runs. `rung`: the next of the ladder, due at `rung_due`.
    """

    stats: EngineStats
    sleep_state: SleepState
    sleeping_tags: tuple[str, ...]
    is_away: bool
    idle_since: float | None = None
    rung: SleepRung | None = None
    rung_due: float = 0.0


# -- to the engine ---------------------------------------------------------------------------------------------------


class Start(Message, tag="start"):
    """The first message. `options`: of `EngineConfig`. `cores`: the only ones to run on; None: any.

    `pulse`: inherited descriptor of the shared memory that counts heartbeats, one every `beat_s`. `log_level`: of
    lullm's records on stderr; None: no records.
    """

    options: dict[str, Any]
    stream_pause_s: float
    pulse: int
    beat_s: float
    log_level: str | None = None
    cores: tuple[int, ...] | None = None


class Admit(Message, tag="admit"):
    """A request. `serial` comes back with its outputs."""

    serial: int
    request: WireRequest
    sent_s: float
    keep_alive: float | None = None


class Withdraw(Message, tag="withdraw"):
    """The reader of a request has gone."""

    serial: int


class Call(Message, tag="call"):
    """A call by name. `serial` comes back with its answer."""

    serial: int
    verb: str
    arguments: dict[str, Any]


class Weight(Message, tag="weight"):
    """A weight of the running update. `serial` comes back once the engine takes it; see `weight_feed`.

    `data` None: the update ends; `is_broken`: because of an error of the caller's.
    """

    serial: int
    data: bytes | None
    is_broken: bool = False


class Cancel(Message, tag="cancel"):
    """The answer is not wanted any more."""

    serial: int


class Stop(Message, tag="stop"):
    """Take no more requests, and end; `drain`: after the running requests."""

    drain: bool


Command = Start | Admit | Withdraw | Call | Weight | Cancel | Stop

# -- from the engine -------------------------------------------------------------------------------------------------


class Ready(Message, tag="ready"):
    """The engine is ready. `max_model_len`: the length that its KV cache holds. `remote_methods`: `EngineClient`'s."""

    max_model_len: int
    remote_methods: tuple[str, ...]
    status: Status


class Outputs(Message, tag="outputs"):
    """The outputs of a step, and the status if it was due."""

    outputs: list[WireOutput]
    status: Status | None = None


class Taken(Message, tag="taken"):
    """The engine has taken a request."""

    serial: int


class Refused(Message, tag="refused"):
    """A request ends with an error."""

    serial: int
    error: PlainError


class Answer(Message, tag="answer"):
    """The answer to a call: its result (`result`, MessagePack itself) or an error."""

    serial: int
    status: Status
    result: bytes = b""
    error: PlainError | None = None


class Heard(Message, tag="heard"):
    """A sleep or a wake-up, for its observers."""

    event: SleepEvent
    status: Status


class Ended(Message, tag="ended"):
    """The last message. `error`: None after a `Stop`."""

    error: PlainError | None = None


News = Ready | Outputs | Taken | Refused | Answer | Heard | Ended

encode = msgspec.msgpack.Encoder().encode
"""Raises TypeError, ValueError, OverflowError: an object that MessagePack cannot hold."""
decode_command = msgspec.msgpack.Decoder[Command](Command).decode
decode_news = msgspec.msgpack.Decoder[News](News).decode
"""Both raise msgspec.DecodeError: these are not the bytes of such a message."""
