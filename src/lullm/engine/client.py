"""EngineClient: the interface of a running engine that servers use. Loads no torch.

It implements what all engines have in common: calls as messages, and vLLM's names for several of them.
"""

import asyncio
import contextlib
import dataclasses
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, Unpack, cast

from lullm.config.option.sleep_after import SleepRung
from lullm.engine.caller.backlog import Reader
from lullm.engine.caller.ending import Ending, ending
from lullm.engine.caller.entry import Entry
from lullm.engine.caller.preparation import Preparation
from lullm.types.hibernation.report import HibernationReport, ResumeReport
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest
from lullm.types.monitor.occupancy import Occupancy
from lullm.types.monitor.stats import EngineStats
from lullm.types.outputs import RequestOutput
from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import CallerRequest, Conversation, GenerateRequest, Input, Prompt
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import (
    WAKE_TAGS,
    ForecastArguments,
    SleepArguments,
    SleepEvent,
    SleepForecast,
    SleepMode,
    SleepOptions,
    SleepReport,
    SleepState,
    WakeReport,
    check_tags,
)
from lullm.types.vllm_argument import (
    VLLM_ABORT,
    VLLM_CALLS,
    VLLM_PROFILE,
    VLLM_SHUTDOWN,
    VLLM_STREAMS,
    VllmNames,
    takes_vllms,
)
from lullm.types.wire.remote_call import RemoteCall

T = TypeVar("T")


class EngineClient(Preparation, VllmNames):
    """An engine that runs beside the caller's event loop. Attributes: see `Preparation`."""

    @abstractmethod
    async def _call(self, verb: str, kind: type[T], **arguments: Any) -> T:
        """Call the engine's thread, after the requests that came before; see `ThreadedEngine.call`. Returns a `kind`.

        The arguments can cross to another process.
        """

    @takes_vllms(VLLM_STREAMS)
    async def generate(
        self,
        prompt: Prompt | Conversation,
        sampling_params: SamplingParams,
        request_id: str,
        priority: int = 0,
        keep_alive: float | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """`prepare` and `stream` in one; errors of either come at the first item."""
        adapters = lora_request, prompt_adapter_request
        request = await self.prepare(CallerRequest(request_id, prompt, sampling_params, priority, *adapters))
        async with contextlib.aclosing(self.stream(request, keep_alive)) as outputs:
            async for output in outputs:
                yield output

    @takes_vllms(VLLM_STREAMS)
    async def encode(
        self,
        prompt: Input,
        pooling_params: PoolingParams,
        request_id: str,
        priority: int = 0,
        keep_alive: float | None = None,
        lora_request: LoRARequest | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """`prepare` and `pool` in one, as a generator of the one output; errors of either come at the first item."""
        request = await self.prepare(CallerRequest(request_id, prompt, pooling_params, priority, lora_request))
        yield await self.pool(request, keep_alive)

    @abstractmethod
    def stream(self, request: GenerateRequest, keep_alive: float | None = None) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come, of `params.output_kind`; the last one has `finished` set.

        Closing or cancelling the generator aborts the request and frees its blocks. With `idle.wakes_by_request` the
        request wakes an engine that sleeps, and waits for that or for the end of a pause.

        Args:
            keep_alive: seconds from the end of this request to the first rung of `sleep_after`, or without one to level
                1, if it is the engine's last request; negative: no sleep; None: as `sleep_after` says.

        Raises, all but the last at the first item:
            InvalidRequestError: more sequences than the engine runs at once, an id that is in use, or a `keep_alive`
            of an engine that requests do not wake.
            EngineAsleepError: the engine sleeps or is about to, and requests do not wake it; it did not wake up within
            `idle.wake_timeout`; or too many requests wait for it. Requests that the engine has are kept: their outputs
            pause, and go on after the wake-up.
            WakeUpError: the engine could not be woken.
            EngineDeadError: the engine stopped before the request ended.
        """

    @abstractmethod
    async def run(self, request: GenerateRequest, reader: Reader, keep_alive: float | None = None) -> None:
        """As `stream`, but `reader` takes the outputs within the engine's own turn. Returns after the last output.

        A reader that is not ready delays only its own outputs. Cancelling the call aborts the request. Raises as
        `stream` does, and what the reader raises.
        """

    @abstractmethod
    async def pool(
        self, request: GenerateRequest, keep_alive: float | None = None
    ) -> PoolingRequestOutput[PoolingOutput]:
        """The output of a request with `PoolingParams`, from `prepare`. Raises as `stream` does.

        Cancelling the call aborts the request. If something else aborts it, its `finish_reason` is 'abort'.
        """

    @takes_vllms(VLLM_ABORT)
    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End one request or several; each gets a last output with the reason 'abort'. Unknown ids are ignored."""
        given = [request_id] if isinstance(request_id, str) else list(request_id)
        await self._call("abort_request", NoneType, request_id=given)

    async def sleep(self, level: int = 1, **arguments: Unpack[SleepArguments]) -> SleepReport:
        """Release memory; returns once it is released. Idempotent. The arguments are those of `SleepOptions`.

        With mode 'wait' running requests end first; meanwhile new ones wait or are refused. Cancelling the call while
        it waits cancels the sleep.

        Raises:
            ConfigError, InvalidRequestError, EngineAsleepError, SleepError: see `LLMEngine.sleep`.
            SleepCancelledError: mode 'wait': a `wake_up` or another sleep came before the requests had ended.
            EngineDeadError: the engine stopped first.
        """
        return await self._call("sleep", SleepReport, **dataclasses.asdict(SleepOptions(level, **arguments)))

    async def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        """Restore the memory of `tags` (None: all). Idempotent. Cancels a sleep that still waits.

        Raises:
            InvalidRequestError: unknown tag.
            WakeUpError: there is no memory, or contents differ from those before the sleep. All that slept is asleep
                again.
            EngineDeadError: the engine stopped first.
        """
        check_tags(tags, WAKE_TAGS)
        return await self._call("wake_up", WakeReport, tags=tags and list(tags))

    async def explain_sleep(self, level: int = 1, **arguments: Unpack[ForecastArguments]) -> SleepForecast:
        """Predict memory and time of such a `sleep`, and of its wake-up. Changes nothing; raises as `sleep` does."""
        SleepOptions(level, **arguments)
        return await self._call("explain_sleep", SleepForecast, level=level, **arguments)

    async def pause_generation(self, mode: SleepMode = "abort", clear_cache: bool = True) -> None:
        """Stop scheduling, as `sleep(0, mode=mode)`; then forget cached prefixes, except with mode 'keep'."""
        await self.sleep(0, mode=mode)
        if clear_cache and mode != "keep":
            await self.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """End a pause. Idempotent. Raises EngineAsleepError: memory is released, which `wake_up` restores."""
        await self._call("resume", NoneType)

    async def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call one of `remote_methods` on every worker, between steps. Raises as `LLMEngine.collective_rpc` does."""
        return await self._call_workers(RemoteCall(method, timeout, args, kwargs))

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        """The XXH3 of each parameter's bytes as the workers hold them, a dict for each worker.

        Engines with equal weights and the same options have equal ones, in other processes too.

        Raises EngineAsleepError: the weights are asleep.
        """
        return await self.collective_rpc("compute_weight_checksums")

    @abstractmethod
    async def _call_workers(self, call: RemoteCall) -> list[Any]:
        """The answers to a `collective_rpc`, one a worker."""

    @property
    def num_replicas(self) -> int:
        """The number of engines behind this client: `data_parallel_size`."""
        return 1

    @property
    @abstractmethod
    def sleeping_tags(self) -> tuple[str, ...]:
        """Tags of the memory that is released now. From any thread."""

    @property
    @abstractmethod
    def sleep_state(self) -> SleepState:
        """Whether the engine is awake and, if not, how deep it sleeps. From any thread."""

    async def is_sleeping(self) -> bool:
        """Whether memory is released, or the engine is paused (level 0)."""
        return self.sleep_state != "awake"

    @property
    @abstractmethod
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while there is one. From any thread."""

    @property
    @abstractmethod
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        """The next rung of `sleep_after` and the seconds until it; None while nothing is due. From any thread."""

    @abstractmethod
    def observe_sleep(self, observer: Callable[[SleepEvent], None]) -> None:
        """Call `observer` at every sleep and wake-up. It must be quick, and must not raise.

        It is called on the engine's thread, or on the event loop if the engine has a process of its own.
        """

    async def expert_load(self, clear: bool = False) -> ExpertLoad:
        """The number of tokens that have used each expert. `clear`: start counting from 0 again."""
        return await self._call("expert_load", ExpertLoad, clear=clear)

    async def rebalance_experts(self) -> ExpertMove:
        """Move experts so that all workers have equal load. Raises as `LLMEngine.rebalance_experts` does."""
        return await self._call("rebalance_experts", ExpertMove)

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read a LoRA adapter now. False: it was there already. Raises as `LLMEngine.add_lora` does."""
        return await self._call("add_lora", bool, lora_request=dataclasses.asdict(lora_request))

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that have it go on. False: there is none of this id."""
        return await self._call("remove_lora", bool, lora_id=lora_id)

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in host memory. Raises as `LLMEngine.pin_lora` does."""
        return await self._call("pin_lora", bool, lora_id=lora_id)

    async def list_loras(self) -> set[int]:
        """The ids of all adapters."""
        return await self._call("list_loras", set)

    @takes_vllms(VLLM_PROFILE)
    async def start_profile(self, folder: str | Path = "profile") -> None:
        """Profile the engine until `stop_profile`. Raises as `Profiler.start` does."""
        await self._call("start_profile", NoneType, folder=str(Path(folder).absolute()))

    async def stop_profile(self) -> Path:
        """End the profile. Returns the path of its trace, for chrome://tracing. Raises as `Profiler.stop` does."""
        return Path(await self._call("stop_profile", str))

    @takes_vllms(VLLM_CALLS)
    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; running requests keep their KV, or are computed again. Raises EngineDeadError."""
        return await self._call("reset_prefix_cache", bool, reset_running_requests=reset_running_requests)

    async def save_prefix_cache(self, path: str | Path) -> HibernationReport:
        """Write the KV blocks that later requests can find to a folder. As `LLMEngine.save_prefix_cache`."""
        return await self._call("save_prefix_cache", HibernationReport, path=str(Path(path).absolute()))

    async def load_prefix_cache(self, path: str | Path) -> ResumeReport:
        """Replace the cached prefixes by those in a folder. As `LLMEngine.load_prefix_cache`."""
        return await self._call("load_prefix_cache", ResumeReport, path=str(Path(path).absolute()))

    @abstractmethod
    def stats(self) -> EngineStats:
        """A snapshot, without waiting for the running step."""

    async def occupancy(self, max_cells: int) -> Occupancy:
        """The owners of the KV cache's blocks, in at most `max_cells` cells per pool, after the running step.

        An engine that sleeps is not woken, and idle time goes on. Raises EngineDeadError.
        """
        return await self._call("occupancy", Occupancy, max_cells=max_cells)

    async def check_health(self) -> None:
        """As `check_running`, under vLLM's name."""
        self.check_running()

    @takes_vllms(VLLM_SHUTDOWN)
    def shutdown(self, drain: bool = True) -> Ending:
        """Stop taking requests; let running ones end (`drain`) or abort them; release everything. Idempotent.

        The call begins it, and awaiting what it returns waits for the end. Without a running event loop the call itself
        waits.

        Requests that a sleeping engine keeps cannot end, and are aborted either way. A second call with `drain=False`
        cuts a drain short.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._end(drain))
            return Ending()
        self._begin_end(drain)
        return ending(self._finish_end())

    async def _end(self, drain: bool) -> None:
        """`shutdown` as a coroutine, whichever event loop runs it."""
        self._begin_end(drain)
        await self._finish_end()

    @abstractmethod
    def _begin_end(self, drain: bool) -> None:
        """Tell the engine to end. From its event loop."""

    @abstractmethod
    async def _finish_end(self) -> None:
        """Return once the engine has ended and everything is released."""


class EntryClient(EngineClient):
    """An `EngineClient` whose requests all go through one entry."""

    _entry: Entry

    def stream(self, request: GenerateRequest, keep_alive: float | None = None) -> AsyncGenerator[RequestOutput, None]:
        return cast(AsyncGenerator[RequestOutput, None], self._entry.outputs(request, keep_alive))

    async def run(self, request: GenerateRequest, reader: Reader, keep_alive: float | None = None) -> None:
        await self._entry.run(request, reader, keep_alive)

    async def pool(
        self, request: GenerateRequest, keep_alive: float | None = None
    ) -> PoolingRequestOutput[PoolingOutput]:
        return await self._entry.vector(request, keep_alive)
