"""FleetMember: one model of a fleet as an `EngineClient`, whether its engine is there or not.

The model's folder was read at the start, so requests are rendered, tokenized and checked without an engine, as with an
engine in another process. A request then waits until the fleet has the model awake.
"""

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, Unpack

from lullm.config.option.sleep_after import SleepRung
from lullm.engine.caller.backlog import Reader
from lullm.engine.caller.entry import check_keep_alive
from lullm.engine.client import EngineClient
from lullm.errors import EngineAsleepError, EngineDeadError, InvalidRequestError, ModelLoadError
from lullm.fleet.adapters import MemberAdapters
from lullm.fleet.need import PlannedModel
from lullm.fleet.options import ModelSpec
from lullm.fleet.record import Cause, ModelRecord
from lullm.fleet.status import ModelStatus, status_of
from lullm.types.lora.request import LoRARequest
from lullm.types.monitor.occupancy import Occupancy, PoolOccupancy
from lullm.types.monitor.stats import EngineStats
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.request import CallerRequest, GenerateRequest
from lullm.types.sleep import (
    TAGS,
    ForecastArguments,
    SleepArguments,
    SleepCause,
    SleepEvent,
    SleepForecast,
    SleepOptions,
    SleepReport,
    SleepState,
    WakeReport,
)
from lullm.types.wire.remote_call import RemoteCall
from lullm.worker.remote_methods import remote_methods

T = TypeVar("T")

_CAUSES: dict[Cause, SleepCause] = {"idle": "idle", "call": "call", "budget": "budget"}


class Keeper(Protocol):
    """What a member asks of its fleet."""

    def hold(
        self, name: str, keep_alive: float | None = None, cause: Cause = "request"
    ) -> contextlib.AbstractAsyncContextManager[EngineClient]:
        """The model's engine, awake for as long as the context lasts."""
        ...

    def use(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Keep the model as it is for as long as the context lasts."""
        ...

    async def sleep_by_call(self, name: str, options: SleepOptions) -> SleepReport: ...

    async def wake_by_call(self, name: str) -> WakeReport: ...

    def check_open(self) -> None:
        """Raises EngineDeadError: the fleet has ended."""
        ...


class FleetMember(EngineClient):
    """One model. Lives on the fleet's event loop.

    Attributes:
        spec: what the user said of it. engine: its engine; None: it is not loaded.
        restored_bytes: by its last wake-up.
    """

    def __init__(
        self, spec: ModelSpec, planned: PlannedModel, record: ModelRecord, keeper: Keeper, has_sleep_calls: bool
    ):
        self.spec = spec
        self.engine: EngineClient | None = None
        self.restored_bytes = 0
        self.engine_config = planned.engine_config
        # Its ladder is the fleet's, and so are its bounds: requests always wake it.
        idle = dataclasses.replace(spec.config.idle, wakes_by_request=True)
        config = dataclasses.replace(planned.opened.config, enable_sleep_mode=has_sleep_calls)
        self._opened = dataclasses.replace(planned.opened, config=config)
        super().__init__(self._opened, idle, remote_methods(config.worker_extension_cls))
        self._adapters = MemberAdapters(planned)
        self._record = record
        self._keeper = keeper
        self._observers: list[Callable[[SleepEvent], None]] = []
        self._cause: SleepCause = "call"

    # -- for the fleet -------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.name

    @property
    def status(self) -> ModelStatus:
        """How the model stands now."""
        return status_of(self._record, self.spec.aliases, self.spec.config.model, self.spec.preload)

    def attach(self, engine: EngineClient) -> None:
        """The engine is there."""
        self.engine = engine
        engine.observe_sleep(self._hear)
        if engine.config.max_model_len != self.config.max_model_len:  # its cache came out smaller than planned
            self.config = dataclasses.replace(self.config, max_model_len=engine.config.max_model_len)
            known = self.prompt_adapters
            self.input_processor = dataclasses.replace(self._opened, config=self.config).input_processor()
            self.input_processor.prompt_adapters = known

    def detach(self) -> EngineClient | None:
        """The engine is to end. Returns it."""
        engine, self.engine = self.engine, None
        return engine

    @contextlib.contextmanager
    def because(self, cause: Cause) -> Iterator[None]:
        """Sleeps and wake-ups in this context have this cause in the metrics."""
        self._cause = _CAUSES.get(cause, "request")
        try:
            yield
        finally:
            self._cause = "call"

    # -- requests ------------------------------------------------------------------------------------------------

    async def prepare(self, asked: CallerRequest) -> GenerateRequest:
        return self._adapters.signed(await super().prepare(asked))

    async def stream(
        self, request: GenerateRequest, keep_alive: float | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        async with self._awake(request, keep_alive) as engine, contextlib.aclosing(engine.stream(request)) as outputs:
            async for output in outputs:
                yield output

    async def run(self, request: GenerateRequest, reader: Reader, keep_alive: float | None = None) -> None:
        async with self._awake(request, keep_alive) as engine:
            await engine.run(request, reader)

    async def pool(
        self, request: GenerateRequest, keep_alive: float | None = None
    ) -> PoolingRequestOutput[PoolingOutput]:
        async with self._awake(request, keep_alive) as engine:
            return await engine.pool(request)

    @contextlib.asynccontextmanager
    async def _awake(self, request: GenerateRequest, keep_alive: float | None) -> AsyncGenerator[EngineClient, None]:
        """The engine, awake, for one request.

        Raises ModelUnavailableError, EngineDeadError; ModelLoadError: the model or the request's adapter.
        """
        self.check_running()
        check_keep_alive(self.idle, keep_alive)
        async with self._keeper.hold(self.name, keep_alive) as engine:
            if len(request.prompt_token_ids) > self.config.max_model_len:  # it was prepared before the engine was there
                raise InvalidRequestError(
                    f"the prompt has {len(request.prompt_token_ids)} tokens, and the model holds "
                    f"{self.config.max_model_len}",
                    "prompt",
                    "context_length_exceeded",
                )
            try:
                yield engine
            except InvalidRequestError as error:
                if error.param != "lora_request":
                    raise
                raise ModelLoadError(str(error)) from None  # it fitted when it was added

    # -- adapters ------------------------------------------------------------------------------------------------

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        return await self._adapters.add(lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        is_known = self._adapters.remove(lora_id)
        if is_known and self.engine is not None:
            with contextlib.suppress(EngineDeadError):  # and its adapters with it
                await self._using(lambda engine: engine.remove_lora(lora_id))
        return is_known

    async def list_loras(self) -> set[int]:
        return self._adapters.ids

    # -- sleep ---------------------------------------------------------------------------------------------------

    async def sleep(self, level: int = 1, **arguments: Unpack[SleepArguments]) -> SleepReport:
        options = SleepOptions(level, **arguments)
        _check_whole(options.tags)
        return await self._keeper.sleep_by_call(self.name, options)

    async def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        _check_whole(tags)
        return await self._keeper.wake_by_call(self.name)

    async def explain_sleep(self, level: int = 1, **arguments: Unpack[ForecastArguments]) -> SleepForecast:
        SleepOptions(level, **arguments)
        return await self._loaded().explain_sleep(level, **arguments)

    async def resume_generation(self) -> None:
        if self._record.is_paused:
            await self.wake_up()
        elif self.sleeping_tags:
            raise EngineAsleepError("the model is not only paused, it is asleep; call wake_up()")

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return self.engine is None or await super().reset_prefix_cache(reset_running_requests)

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        return TAGS if self.engine is None else self.engine.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        return "discard_all" if self.engine is None else self.engine.sleep_state

    @property
    def idle_s(self) -> float:
        return self._record.ladder.idle_s

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        return self._record.ladder.next() if self._record.may_rest else None

    def observe_sleep(self, observer: Callable[[SleepEvent], None]) -> None:
        self._observers.append(observer)

    def _hear(self, event: SleepEvent) -> None:
        event = dataclasses.replace(event, cause=self._cause)
        for observer in self._observers:
            observer(event)

    # -- the rest ------------------------------------------------------------------------------------------------

    async def _call_workers(self, call: RemoteCall) -> list[Any]:
        return await self._using(lambda engine: engine.collective_rpc(*call))

    async def _call(self, verb: str, kind: type[T], **arguments: Any) -> T:
        return await self._using(lambda engine: engine._call(verb, kind, **arguments))

    async def _using(self, call: Callable[[EngineClient], Awaitable[T]]) -> T:
        with self._keeper.use(self.name):
            return await call(self._loaded())

    def _loaded(self) -> EngineClient:
        if self.engine is None:
            raise EngineAsleepError(f"the model {self.name!r} is not loaded; POST /models/load, or ask it something")
        return self.engine

    def stats(self) -> EngineStats:
        stats = EngineStats() if self.engine is None else self.engine.stats()
        return dataclasses.replace(stats, num_waiting=stats.num_waiting + len(self._record.waiting))

    async def occupancy(self, max_cells: int) -> Occupancy:
        if self.engine is not None:
            with contextlib.suppress(EngineDeadError):  # it ends at this moment
                return await self.engine.occupancy(max_cells)
        nothing = PoolOccupancy(0, 1, b"")
        return Occupancy(self.config.block_size, nothing, nothing, (), 0, 0.0)

    def check_running(self) -> None:
        self._keeper.check_open()

    def _begin_end(self, drain: bool) -> None:
        """Nothing: the fleet ends its engines."""

    async def _finish_end(self) -> None:
        """Nothing, either."""


def _check_whole(tags: Sequence[str] | None) -> None:
    if tags is not None and set(tags) != set(TAGS):
        raise InvalidRequestError("a model of several behind one server sleeps and wakes whole; leave tags out", "tags")
