"""ReplicaEngine: several engines, driven by calls of `step` like an `LLMEngine`. Loads no torch.

They compute in processes of their own; `step` collects their outputs.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from lullm.config.engine import EngineConfig
from lullm.engine.assembly import check_threadless
from lullm.engine.input.calls import InputCalls
from lullm.engine.replica.calling_thread import CallingThread
from lullm.engine.replica.client import ReplicaClient
from lullm.errors import EngineDeadError, InvalidRequestError
from lullm.machine.owner import check_owner
from lullm.types.monitor.stats import EngineStats
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.sleep import SleepState, check_awake

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
_News = tuple[GenerateRequest, EngineOutput | Exception]

_STEP_S = 0.05
"""`step` returns after so long without an output, so that its caller notices Ctrl-C."""


def _blocking(
    call: Callable[Concatenate[ReplicaClient, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[ReplicaEngine, P], T]":
    """Make a blocking method of `ReplicaEngine` from the client's coroutine, which runs on the thread that reads."""

    @functools.wraps(call)
    def wait(engine: "ReplicaEngine", /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine._check_open()
        return asyncio.run_coroutine_threadsafe(call(engine._client, *args, **kwargs), engine._loop).result()

    return wait


class ReplicaEngine(InputCalls):
    """Starts `config.data_parallel_size` engines in the constructor, which blocks until all are ready.

    Not safe to share between threads. A fork of the process has a copy, which ends no process.

    Attributes and raised errors: see `LLMEngine`, but a request that no engine takes fails in `step`. An error of one
    engine names it.
    """

    def __init__(self, config: EngineConfig):
        check_threadless(config)
        self._client = ReplicaClient(config)
        self.config = self._client.config
        self.model_config = self._client.model_config
        self.tokenizer = self._client.tokenizer
        self.default_params = self._client.default_params
        self.stated_params = self._client.stated_params
        self.input_processor = self._client.input_processor
        self._unfinished: dict[str, tuple[GenerateRequest, concurrent.futures.Future[None]]] = {}
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._readers: dict[str, asyncio.Task[None]] = {}  # of the loop's thread
        self._held: _News | None = None  # an error that the next step raises first
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lullm-replicas", daemon=True)
        self._thread.start()
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, self._owner, self._client, self._loop, self._thread)

    def add_processed(self, request: GenerateRequest) -> None:
        """See `LLMEngine`, also for the methods below."""
        self._client.check_free()
        self._check_open()
        if request.request_id in self._unfinished:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use", "request_id")
        check_awake(self.sleep_state, self.sleeping_tags)
        reading = _read_in_turn(self._client, request, self._news, self._readers)
        self._unfinished[request.request_id] = request, asyncio.run_coroutine_threadsafe(reading, self._loop)

    def step(self) -> list[EngineOutput]:
        """The outputs since the last call. Waits for `_STEP_S` at most if there are none.

        Raises the error that ends a request; the others go on with the next call.
        """
        self._client.check_free()
        outputs: list[EngineOutput] = []
        deadline = time.monotonic() + _STEP_S  # engines may draw as fast as this loop takes their outputs
        while self._unfinished and not (outputs and time.monotonic() > deadline):
            try:
                request, news = self._held or self._news.get(timeout=0 if outputs else _STEP_S)
            except queue.Empty:
                break
            self._held = None
            known = self._unfinished.get(request.request_id)
            # its output is not wanted; another request may have its id now
            if known is None or known[0] is not request:
                continue
            if isinstance(news, Exception):
                if outputs:
                    self._held = request, news
                    break
                del self._unfinished[request.request_id]
                raise news
            if news.finished:
                del self._unfinished[request.request_id]
            outputs.append(news)
        return outputs

    def abort_request(self, request_id: str | Iterable[str], wants_output: bool = True) -> None:
        request_ids = [request_id] if isinstance(request_id, str) else list(request_id)
        if wants_output:
            self._abort(request_ids)
            return
        for each in request_ids:
            if (known := self._unfinished.pop(each, None)) is not None:
                known[1].cancel()

    def take_pending(self) -> list[EngineOutput]:
        """As `LLMEngine`'s: none, since an aborted request is unfinished until a step returns its last output."""
        return []

    def has_unfinished_requests(self) -> bool:
        return bool(self._unfinished)

    def get_num_unfinished_requests(self) -> int:
        return len(self._unfinished)

    def unfinished_request_ids(self) -> list[str]:
        return list(self._unfinished)

    sleep = _blocking(ReplicaClient.sleep)
    explain_sleep = _blocking(ReplicaClient.explain_sleep)
    wake_up = _blocking(ReplicaClient.wake_up)
    collective_rpc = _blocking(ReplicaClient.collective_rpc)
    expert_load = _blocking(ReplicaClient.expert_load)
    rebalance_experts = _blocking(ReplicaClient.rebalance_experts)
    add_lora = _blocking(ReplicaClient.add_lora)
    remove_lora = _blocking(ReplicaClient.remove_lora)
    pin_lora = _blocking(ReplicaClient.pin_lora)
    list_loras = _blocking(ReplicaClient.list_loras)
    start_profile = _blocking(ReplicaClient.start_profile)
    stop_profile = _blocking(ReplicaClient.stop_profile)
    reset_prefix_cache = _blocking(ReplicaClient.reset_prefix_cache)
    check_health = _blocking(ReplicaClient.check_health)
    _abort = _blocking(ReplicaClient.abort)
    _shut_down = _blocking(ReplicaClient._end)

    def is_sleeping(self) -> bool:
        return self.sleep_state != "awake"

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        self._check_alive()
        return self._client.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        """As `LLMEngine`'s. Raises EngineDeadError: a dead engine has no state."""
        self._check_alive()
        return self._client.sleep_state

    @property
    def remote_methods(self) -> frozenset[str]:
        return self._client.remote_methods

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]") -> int:
        """The calling thread iterates."""
        self._check_open()
        here = CallingThread()
        update = self._client.update_weights(weights, iterating=here)
        return here.wait_for(asyncio.run_coroutine_threadsafe(update, self._loop))

    def reload_weights(self, weights_path: str | Path | None = None) -> None:
        given = {} if weights_path is None else {"weights_path": str(weights_path)}
        self.collective_rpc("reload_weights", kwargs=given)

    def stats(self) -> EngineStats:
        self._check_alive()
        return self._client.stats()

    def shutdown(self) -> None:
        """Abort all requests and end the engines. Idempotent. In a fork do nothing."""
        if self._end.alive and os.getpid() == self._owner:
            self.abort_request(self.unfinished_request_ids(), wants_output=False)
            self._shut_down(drain=False)
            self._end()

    def _check_alive(self) -> None:
        """Raises EngineDeadError: an engine is dead, or all are shut down."""
        self._check_open()
        self._client.check_alive()

    def _check_open(self) -> None:
        if not self._end.alive:
            raise EngineDeadError("the engine has been shut down")
        check_owner(self._owner)


async def _read_in_turn(
    client: ReplicaClient,
    request: GenerateRequest,
    news: "queue.SimpleQueue[_News]",
    readers: dict[str, asyncio.Task[None]],
) -> None:
    """As `_read`, once an aborted request of the same id, which its caller has forgotten, has left its engine."""
    while (before := readers.get(request.request_id)) is not None:
        await asyncio.wait([before])
    own = asyncio.current_task()
    assert own is not None, "a coroutine of the loop"
    readers[request.request_id] = own
    try:
        await _read(client, request, news)
    finally:
        del readers[request.request_id]


async def _read(client: ReplicaClient, request: GenerateRequest, news: "queue.SimpleQueue[_News]") -> None:
    """Put the outputs of a request, or its error, into `news`. It holds no reference to a `ReplicaEngine`."""
    try:
        async with contextlib.aclosing(client.stream(request)) as outputs:
            async for output in outputs:
                news.put((request, output))
    except Exception as error:
        news.put((request, error))


def _end(owner: int, client: ReplicaClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Stop the processes, and the thread that reads. A fork has neither."""
    if os.getpid() != owner:
        return
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    client.close()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
