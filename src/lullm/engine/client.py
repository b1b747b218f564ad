"""EngineClient: what the faces may ask of a running engine. The server is written against this and loads no torch."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, Protocol, Unpack

from lullm.config.model import ModelConfig
from lullm.config.option.sleep_after import SleepRung
from lullm.config.resolved import IdleConfig, ResolvedConfig
from lullm.engine.caller.backlog import Reader
from lullm.text.tokenizer import Tokenizer
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import Conversation, GenerateRequest, Input, Prompt
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import (
    ForecastArguments,
    SleepArguments,
    SleepForecast,
    SleepMode,
    SleepReport,
    SleepState,
    WakeReport,
)
from lullm.types.watch.occupancy import Occupancy
from lullm.types.watch.stats import EngineStats

SleepCause = Literal["call", "idle", "request"]
"""What put an engine to sleep or woke it: a call, the ladder when no request came, or a request."""


class SleepObserver(Protocol):
    """Hears of every sleep and wake-up, on the engine's thread: it must be quick and must not raise."""

    def slept(self, report: SleepReport, cause: SleepCause) -> None:
        """Something was released, or the engine paused."""
        ...

    def woke(self, report: WakeReport, cause: SleepCause) -> None:
        """Something came back, or a pause ended."""
        ...

    def sleep_failed(self, cause: SleepCause) -> None:
        """What must be kept could not be saved; nothing was released."""
        ...

    def wake_up_failed(self, cause: SleepCause) -> None:
        """It did not come back as it was; the engine is still asleep."""
        ...


class EngineClient(Protocol):
    """An engine that runs beside the caller's event loop."""

    config: ResolvedConfig
    idle: IdleConfig
    model_config: ModelConfig
    tokenizer: Tokenizer
    default_params: SamplingParams  # the model's generation_config.json

    async def prepare(
        self, request_id: str, prompt: Input, params: SamplingParams | PoolingParams, priority: int = 0
    ) -> GenerateRequest:
        """Render, tokenize and check a request; long ones in a thread, so that the event loop goes on.

        Raises:
            InvalidRequestError: the request can never be served. EngineDeadError: the engine takes no new requests.
        """
        ...

    async def tokenize(self, prompt: Prompt | Conversation, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt of any length. Raises InvalidRequestError, as `prepare` does."""
        ...

    async def detokenize(self, token_ids: list[int]) -> str:
        """The text of `token_ids`, special tokens included. Raises InvalidRequestError: one is not in the model."""
        ...

    def stream(self, request: GenerateRequest, keep_alive: float | None = None) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come, of `params.output_kind`; the last one has `finished` set.

        Closing or cancelling the generator aborts the request and frees its blocks. On an engine that sleeps, with
        `idle.wakes_by_request`, the request wakes it and waits, also for the end of a pause.

        Args:
            keep_alive: how many seconds the engine stays awake after its last request, if that is this one, before it
                takes the first rung of its `sleep_after`; negative: it never does; None: as `sleep_after` says.

        Raises:
            InvalidRequestError: at the first item: more sequences than the engine runs at once, an id that is in
                use, or a `keep_alive` without a `sleep_after`.
            EngineAsleepError: at the first item, when the engine sleeps, or waits for its requests to do so, and
                requests do not wake it; when it did not come back within `idle.wake_timeout`; when too many wait for
                that. A request that was taken before is kept: its outputs pause, and go on after waking.
            WakeUpError: at the first item, when the engine could not be woken for it.
            EngineDeadError: the engine stopped before the request ended.
        """
        ...

    async def run(self, request: GenerateRequest, reader: Reader, keep_alive: float | None = None) -> None:
        """The same, to a `reader` that takes the outputs within the engine's own turn; returns behind the last one.

        Nothing waits for a reader that is not ready but its own outputs. Cancelling the call aborts the request. Raises
        as `stream` does, and what the reader raises.
        """
        ...

    async def pool(
        self, request: GenerateRequest, keep_alive: float | None = None
    ) -> PoolingRequestOutput[PoolingOutput]:
        """The output of a request that `prepare` has made for `PoolingParams`; raises as `stream` does.

        Cancelling the call aborts the request. One that was aborted otherwise has the `finish_reason` 'abort'.
        """
        ...

    async def sleep(self, level: int = 1, **arguments: Unpack[SleepArguments]) -> SleepReport:
        """Release memory; returns once it is released. Idempotent. The arguments are those of `SleepOptions`.

        With mode 'wait' running requests end first, and new ones are refused, or wait, meanwhile. Cancelling the call
        while it waits cancels the sleep.

        Raises:
            ConfigError, InvalidRequestError, EngineAsleepError, OSError: see `LLMEngine.sleep`.
            SleepCancelledError: mode 'wait', and a `wake_up` or another sleep came before the requests had ended.
            EngineDeadError: the engine stopped first.
        """
        ...

    async def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        """Bring back `tags` (None: all); returns once they are there. Idempotent. Cancels a sleep that still waits.

        Raises:
            InvalidRequestError: unknown tag. WakeUpError: it did not come back as it was, and is still asleep.
            EngineDeadError: the engine stopped first.
        """
        ...

    async def explain_sleep(self, level: int = 1, **arguments: Unpack[ForecastArguments]) -> SleepForecast:
        """What such a `sleep` would do now, and how long waking would take. Changes nothing; raises as `sleep` does."""
        ...

    async def pause_generation(self, mode: SleepMode = "abort", clear_cache: bool = True) -> None:
        """Stop scheduling, as `sleep(0, mode=mode)` does; then forget cached prefixes, but not with mode 'keep'."""
        ...

    async def resume_generation(self) -> None:
        """End a pause. Idempotent. Raises EngineAsleepError if memory is released, which is for `wake_up`."""
        ...

    @property
    def remote_methods(self) -> frozenset[str]:
        """What `collective_rpc` takes by name: `REMOTE_METHODS`, and what `worker_extension_cls` brings along."""
        ...

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call one of `remote_methods` on every worker, between steps. Raises as `LLMEngine.collective_rpc` does."""
        ...

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """What is released now. From any thread."""
        ...

    @property
    def sleep_state(self) -> SleepState:
        """Awake or how deep asleep, in one word. From any thread."""
        ...

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while there is one. From any thread."""
        ...

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        """The next rung of `sleep_after` and the seconds until it; None while nothing is due. From any thread."""
        ...

    def observe_sleep(self, observer: SleepObserver) -> None:
        """From now on `observer` hears of every sleep and wake-up."""
        ...

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; running requests keep theirs, or are computed again. Raises EngineDeadError."""
        ...

    def stats(self) -> EngineStats:
        """A snapshot, without waiting for the running step."""
        ...

    async def occupancy(self, max_cells: int) -> Occupancy:
        """Who holds which part of the KV cache, in at most `max_cells` cells per pool, once the running step has ended.

        Neither wakes an engine that sleeps nor keeps one awake. Raises EngineDeadError.
        """
        ...

    def check_running(self) -> None:
        """Return if the engine serves. Raises EngineDeadError otherwise, with the cause."""
        ...

    async def shutdown(self, drain: bool = True) -> None:
        """Stop taking requests; let running ones end (`drain`) or abort them; release everything. Idempotent.

        What an engine that sleeps has kept cannot end, and is aborted either way.
        """
        ...
