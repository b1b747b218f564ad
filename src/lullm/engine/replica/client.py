"""ReplicaClient: several engines in processes of their own, as one `EngineClient`. Loads no torch.

Every request goes to one of them, by the `Router`. Calls go to all, and have one answer (`merge`).
"""

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from lullm.config.engine import EngineConfig
from lullm.config.option.sleep_after import SleepRung
from lullm.engine.caller.backlog import Reader
from lullm.engine.client import EngineClient
from lullm.engine.process.client import ProcessClient
from lullm.engine.process.weight_feed import feed_all
from lullm.engine.replica.crew import Crew, gathered
from lullm.engine.replica.merge import merged_load, merged_move, merged_occupancy, merged_state, merged_stats
from lullm.engine.replica.router import Replica, Router, Ticket
from lullm.engine.start.model import open_model
from lullm.errors import EngineDeadError, InvalidRequestError, UnsupportedError
from lullm.executor.merge import merged_reports, merged_tags
from lullm.kv.hashing import BlockHashes
from lullm.types.hibernation.report import HibernationReport, ResumeReport
from lullm.types.monitor.occupancy import Occupancy
from lullm.types.monitor.stats import EngineStats
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import EngineOutput, PoolingOutput, PoolingRequestOutput
from lullm.types.request import GenerateRequest
from lullm.types.sleep import SleepArguments, SleepEvent, SleepReport, SleepState
from lullm.types.vllm_argument import VLLM_ABORT, VLLM_CALLS, VLLM_PROFILE, takes_vllms
from lullm.types.wire.remote_call import RemoteCall

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

_MERGED: dict[str, Callable[[list[Any]], Any]] = {
    "wake_up": merged_reports,
    "explain_sleep": merged_reports,
    "resume": lambda answers: None,
    "reset_prefix_cache": all,
    "occupancy": merged_occupancy,
    "expert_load": merged_load,  # workers are numbered across all engines
    "rebalance_experts": merged_move,  # each moves its own experts, by its own load
    "add_lora": any,
    "remove_lora": any,
    "pin_lora": all,
    "list_loras": lambda answers: answers[0],
    "stop_profile": lambda answers: answers[0],  # the other engines' traces are beside its folder
}
"""Calls of an `EngineClient` whose answers are merged, each with its function; other calls have their own methods."""

_MAX_HASHED = 512
"""Blocks of a prompt that choose its engine: 8,192 tokens are hashed in a millisecond."""


class ReplicaClient(EngineClient):
    """Starts `config.data_parallel_size` engines in the constructor, which blocks until all are ready.

    Methods, attributes and raised errors: see `EngineClient` and `ProcessClient`. An error of one engine names it.
    """

    def __init__(self, config: EngineConfig, stream_pause_s: float = 0.0):
        model = open_model(config)
        self._crew = Crew(config, stream_pause_s, model)
        self._replicas = self._crew.engines
        shortest = min((replica.config for replica in self._replicas), key=lambda each: each.max_model_len)
        model = dataclasses.replace(model, config=shortest)
        super().__init__(model, config.idle, self._replicas[0].remote_methods)
        stats = [replica.stats() for replica in self._replicas]
        has_cache = self.config.enable_prefix_caching
        self._router = Router([each.num_blocks * has_cache for each in stats], self.config.block_size)
        self._tickets: dict[str, Ticket] = {}  # of the requests that have not ended
        for replica, known in zip(self._replicas, self._router.replicas, strict=True):
            replica.observe_sleep(functools.partial(_forget_released, known))

    # -- requests ------------------------------------------------------------------------------------------------

    async def stream(
        self, request: GenerateRequest, keep_alive: float | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        self.check_running()
        with self._sent(request) as ticket:
            outputs = self._replicas[ticket.engine].stream(request, keep_alive)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    if ticket.num_tokens:
                        self._router.begin(ticket)
                    yield output

    async def run(self, request: GenerateRequest, reader: Reader, keep_alive: float | None = None) -> None:
        self.check_running()
        with self._sent(request) as ticket:
            first = _FirstOutput(reader, lambda: self._router.begin(ticket))
            await self._replicas[ticket.engine].run(request, first, keep_alive)

    async def pool(
        self, request: GenerateRequest, keep_alive: float | None = None
    ) -> PoolingRequestOutput[PoolingOutput]:
        self.check_running()
        with self._sent(request) as ticket:
            return await self._replicas[ticket.engine].pool(request, keep_alive)

    @takes_vllms(VLLM_ABORT)
    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; those of a dead engine end with its error."""
        given = {request_id} if isinstance(request_id, str) else set(request_id)
        of_engines: dict[ProcessClient, list[str]] = {}
        for each in given & self._tickets.keys():
            of_engines.setdefault(self._replicas[self._tickets[each].engine], []).append(each)
        _, errors = await self._crew.each(lambda replica: replica.abort(of_engines[replica]), of_engines)
        self._crew.raise_first({n: error for n, error in errors.items() if not isinstance(error, EngineDeadError)})

    @property
    def num_replicas(self) -> int:
        return len(self._replicas)

    def get_num_unfinished_requests(self) -> int:
        """The number of requests that have not ended."""
        return len(self._tickets)

    @contextlib.contextmanager
    def _sent(self, request: GenerateRequest) -> Iterator[Ticket]:
        """Hold a ticket, which names the engine, for the life of a request. Raises InvalidRequestError."""
        self._crew.feeding.check()
        if request.request_id in self._tickets:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use", "request_id")
        ticket = self._route(request)
        self._tickets[request.request_id] = ticket
        try:
            yield ticket
        except EngineDeadError as error:
            raise self._crew.named(ticket.engine, error) from None
        finally:
            del self._tickets[request.request_id]
            self._router.end(ticket)

    def _route(self, request: GenerateRequest) -> Ticket:
        # Engines read an adapter's content; to route a request, its id tells enough.
        adapter = b"" if request.lora is None else request.lora.lora_int_id.to_bytes(8, "big")
        token_ids, size = request.prompt_token_ids, self.config.block_size
        hashes = BlockHashes(size, salt=request.cache_salt, adapter_digest=adapter, tiles=request.tiles)
        num_blocks = min(len(token_ids) // self.config.block_size, _MAX_HASHED) * self.config.enable_prefix_caching
        hashes.extend(token_ids, num_blocks)
        return self._router.send(
            len(token_ids), [hashes[number] for number in range(num_blocks)], request.params.num_sequences
        )

    # -- sleep ---------------------------------------------------------------------------------------------------

    async def sleep(self, level: int = 1, **arguments: Unpack[SleepArguments]) -> SleepReport:
        """All engines sleep, or none: if one fails, those that were awake are woken. The error names the engine."""
        were_awake = [replica.sleep_state == "awake" for replica in self._replicas]  # each has its own ladder
        reports, errors = await self._crew.each(lambda replica: replica.sleep(level, **arguments))
        if errors:
            asleep = [self._replicas[number] for number in reports if were_awake[number]]
            _, stuck = await gathered({number: replica.wake_up() for number, replica in enumerate(asleep)})
            self._crew.raise_first(errors, f"; {len(stuck)} other engines sleep still" if stuck else "")
        return merged_reports(list(reports.values()))

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        return merged_tags([replica.sleeping_tags for replica in self._replicas])

    @property
    def sleep_state(self) -> SleepState:
        return merged_state([replica.sleep_state for replica in self._replicas])

    @property
    def idle_s(self) -> float:
        return min(replica.idle_s for replica in self._replicas)

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        """The engine that goes to sleep first; each counts its own idle time."""
        steps = [step for replica in self._replicas if (step := replica.next_sleep) is not None]
        return min(steps, key=lambda step: step[1], default=None)

    def observe_sleep(self, observer: Callable[[SleepEvent], None]) -> None:
        """Call `observer` for every engine."""
        for replica in self._replicas:
            replica.observe_sleep(observer)

    # -- other calls ---------------------------------------------------------------------------------------------

    async def _call(self, verb: str, kind: type[T], **arguments: Any) -> T:
        """The merged answers of all engines. If one fails, the others have still done the call."""
        answer: T = _MERGED[verb](await self._crew.all(lambda replica: replica._call(verb, kind, **arguments)))
        return answer

    async def _call_workers(self, call: RemoteCall) -> list[Any]:
        found = await self._crew.all(lambda replica: replica.collective_rpc(*call))
        return [answer for answers in found for answer in answers]

    async def update_weights(self, weights: "Iterable[tuple[str, Tensor]]", iterating: Executor | None = None) -> int:
        """Replace weights of all engines; returns how many. Raises what iterating `weights` raises.

        After an error the engines may differ in the tensor that the error names. The same update again makes them
        equal.

        Args:
            iterating: the executor that iterates `weights`; None: a thread.
        """
        self._crew.feeding.check()
        async with contextlib.AsyncExitStack() as stack:
            feeds = {each: await stack.enter_async_context(each.weight_feed()) for each in self._replicas}
            await feed_all([*feeds.values()], self._crew.feeding.items(weights), iterating)
            return (await self._crew.all(lambda replica: feeds[replica].end()))[0]

    @takes_vllms(VLLM_PROFILE)
    async def start_profile(self, folder: str | Path = "profile") -> None:
        """Profile all engines until `stop_profile`; each has its own folder in `folder`."""
        folders = {each: Path(folder) / f"engine-{number}" for number, each in enumerate(self._replicas)}
        await self._crew.all(lambda replica: replica.start_profile(folders[replica]))

    @takes_vllms(VLLM_CALLS)
    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        is_reset = await super().reset_prefix_cache(reset_running_requests)
        for known in self._router.replicas:
            known.forget()
        return is_reset

    async def save_prefix_cache(self, path: str | Path) -> HibernationReport:
        """Raises UnsupportedError: each engine has a cache of its own."""
        raise UnsupportedError("prefix caches are not saved for data_parallel_size above 1; serve one engine a process")

    async def load_prefix_cache(self, path: str | Path) -> ResumeReport:
        """Raises UnsupportedError: as `save_prefix_cache`."""
        raise UnsupportedError("prefix caches are not read for data_parallel_size above 1; serve one engine a process")

    def stats(self) -> EngineStats:
        return merged_stats([replica.stats() for replica in self._replicas])

    async def occupancy(self, max_cells: int) -> Occupancy:
        return await super().occupancy(max(max_cells // len(self._replicas), 1))

    def check_running(self) -> None:
        """Raises EngineDeadError: an engine is dead, or all are shutting down."""
        self._check_each(lambda replica: replica.check_running())

    def check_free(self) -> None:
        """Check that a call may wait for the engines. Raises InvalidRequestError: they wait for a weight."""
        self._crew.feeding.check()

    def check_alive(self) -> None:
        """As `check_running`, from any thread."""
        self._check_each(lambda replica: replica.check_alive())

    def _check_each(self, check: Callable[[ProcessClient], None]) -> None:
        for number, replica in enumerate(self._replicas):
            try:
                check(replica)
            except EngineDeadError as error:
                raise self._crew.named(number, error) from None

    def _begin_end(self, drain: bool) -> None:
        self._crew.feeding.check()
        for replica in self._replicas:
            replica._begin_end(drain)

    async def _finish_end(self) -> None:
        await asyncio.gather(*(replica._finish_end() for replica in self._replicas))

    def close(self) -> None:
        """End all processes now, without an event loop. Idempotent."""
        self._crew.close()


def _forget_released(known: Replica, event: SleepEvent) -> None:
    if event.slept is not None and event.slept.tags:
        known.forget()


class _FirstOutput:
    """Passes outputs on to a reader, and calls `tell` at the first one."""

    def __init__(self, reader: Reader, tell: Callable[[], None]):
        self._reader = reader
        self._tell: Callable[[], None] | None = tell
        self.when_ready = reader.when_ready

    @property
    def is_ready(self) -> bool:
        return self._reader.is_ready

    def take(self, output: EngineOutput) -> None:
        if self._tell is not None:
            self._tell()
            self._tell = None
        self._reader.take(output)
