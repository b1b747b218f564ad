"""AsyncLLMEngine: the engine on a thread of its own, behind asyncio streams. Implements `EngineClient`.

One thread owns the `LLMEngine` and steps it; everyone else sends it commands through a queue and gets outputs back on
his own event loop. The step loop takes no lock. While the engine sleeps the thread runs commands only; when it sleeps
and wakes is the business of `SleepWatch`.
"""

import asyncio
import contextlib
import math
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from lullm.config.engine import EngineConfig
from lullm.config.sleep_after import SleepRung
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.mailbox import Call, OutputStream, call_on
from lullm.engine.protocol import SleepObserver
from lullm.engine.sleep_watch import SleepWatch
from lullm.errors import EngineAsleepError, EngineDeadError, InvalidRequestError
from lullm.log import get_logger
from lullm.types.outputs import RequestOutput
from lullm.types.request import GenerateRequest, Prompt
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import (
    BackupTarget,
    SleepForecast,
    SleepMode,
    SleepOptions,
    SleepReport,
    SleepState,
    WakeReport,
)
from lullm.types.stats import EngineStats

T = TypeVar("T")

logger = get_logger(__name__)

_LONG_PROMPT_CHARS = 8192
"""Texts from here on are tokenized on a worker thread: a megabyte takes half a second, which a loop must not block."""


class AsyncLLMEngine:
    """Builds its engine in the constructor, which blocks until the model is loaded, and starts the thread.

    Attributes and raised errors: see `EngineClient` and `LLMEngine`.
    """

    def __init__(self, config: EngineConfig):
        self._engine = LLMEngine(config.threadless())
        self.config = self._engine.config.with_thread_options(config)
        self.model_config = self._engine.model_config
        self.tokenizer = self._engine.tokenizer
        self.default_params = self._engine.default_params
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, OutputStream] = {}  # owned by the engine's thread
        self._watch = SleepWatch(self._engine, self.config, self._enter)
        self._failure: EngineDeadError | None = None
        self._is_closing = False  # no new requests
        self._is_closed = False  # no more commands; changes under the lock, so that none is sent and never read
        self._num_untaken = 0  # requests that were sent and not taken in; changes under the lock
        self._lock = threading.Lock()
        self._must_stop = False  # owned by the engine's thread
        self._thread = threading.Thread(target=self._run, name="lullm-engine", daemon=True)
        self._thread.start()

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        priority: int = 0,
        keep_alive: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """See `EngineClient.generate`."""
        self.check_health()
        self._check_keep_alive(keep_alive)
        process = self._engine.input_processor.process
        if _num_chars(prompt) >= _LONG_PROMPT_CHARS:
            request = await asyncio.to_thread(process, request_id, prompt, params, priority)
        else:
            request = process(request_id, prompt, params, priority)
        self.check_health()
        stream = OutputStream(asyncio.get_running_loop(), time.monotonic(), keep_alive)
        finished = False
        try:
            if self.config.wakes_by_request:
                await self._send_and_wait(request, stream)
            else:
                self._send_command(lambda: self._watch.admit(request, stream))
            while not finished:
                item = await stream.items.get()
                finished = not isinstance(item, RequestOutput) or item.finished
                if not isinstance(item, RequestOutput):
                    raise item
                yield item
        finally:
            if not finished:
                stream.is_closed = True
                with contextlib.suppress(EngineDeadError):
                    self._send_command(lambda: self._abort(request_id, stream))

    async def _send_and_wait(self, request: GenerateRequest, stream: OutputStream) -> None:
        """Return once the engine has taken or refused the request, which may have to wake it first.

        Raises:
            EngineAsleepError: too many requests wait for that already, or it takes too long.
        """
        with self._lock:
            if self._num_untaken >= self.config.max_num_wake_waiting and self._watch.is_away:
                raise EngineAsleepError(f"{self._num_untaken} requests wait already for the engine to wake up")
            self._num_untaken += 1
        try:
            self._send_command(lambda: self._watch.admit(request, stream))
            async with asyncio.timeout(self.config.wake_timeout):
                await stream.is_taken.wait()
        except TimeoutError:
            raise EngineAsleepError(f"the engine did not wake up within {self.config.wake_timeout:g} s") from None
        finally:
            with self._lock:
                self._num_untaken -= 1

    def _check_keep_alive(self, keep_alive: float | None) -> None:
        if keep_alive is None:
            return
        if not self._watch.ladder:
            raise InvalidRequestError("keep_alive needs an engine with a sleep_after", "keep_alive")
        if not math.isfinite(keep_alive):
            raise InvalidRequestError(f"keep_alive must be a finite number of seconds, not {keep_alive}", "keep_alive")

    async def sleep(
        self,
        level: int = 1,
        mode: SleepMode = "keep",
        tags: Sequence[str] | None = None,
        backup: BackupTarget = "auto",
        keep_prefix_cache: bool = False,
    ) -> SleepReport:
        """See `EngineClient.sleep`."""
        options = SleepOptions(level, mode, tags, backup, keep_prefix_cache)
        call = Call(lambda: self._watch.sleep(options))
        return await self._answer(call, lambda: self._watch.begin_sleep(call, options))

    async def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        """See `EngineClient.wake_up`."""
        return await self._call(lambda: self._watch.wake_up(tags))

    async def explain_sleep(
        self,
        level: int = 1,
        tags: Sequence[str] | None = None,
        backup: BackupTarget = "auto",
        keep_prefix_cache: bool = False,
    ) -> SleepForecast:
        """See `EngineClient.explain_sleep`."""
        return await self._call(lambda: self._engine.explain_sleep(level, tags, backup, keep_prefix_cache))

    async def pause_generation(self, mode: SleepMode = "abort", clear_cache: bool = True) -> None:
        """See `EngineClient.pause_generation`."""
        await self.sleep(0, mode)
        if clear_cache and mode != "keep":
            await self.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """See `EngineClient.resume_generation`."""
        await self._call(self._watch.resume)

    @property
    def is_sleeping(self) -> bool:
        """See `EngineClient.is_sleeping`."""
        return self._engine.is_sleeping

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """See `EngineClient.sleeping_tags`."""
        return self._engine.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        """See `EngineClient.sleep_state`."""
        return self._engine.sleep_state

    @property
    def idle_s(self) -> float:
        """See `EngineClient.idle_s`."""
        return self._watch.ladder.idle_s

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        """See `EngineClient.next_sleep`."""
        return self._watch.next_sleep

    def observe_sleep(self, observer: SleepObserver) -> None:
        """See `EngineClient.observe_sleep`."""
        self._watch.observers.append(observer)

    async def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """See `LLMEngine.collective_rpc`; between steps, on the engine's thread. Raises what `method` does."""
        return await self._call_foreign(lambda: self._engine.collective_rpc(method, timeout, args, kwargs))

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> int:
        """See `LLMEngine.update_weights`; the engine's thread iterates. Raises what iterating `weights` does."""
        return await self._call_foreign(lambda: self._engine.update_weights(weights))

    async def reset_prefix_cache(self) -> bool:
        """See `EngineClient.reset_prefix_cache`."""
        return await self._call(self._engine.reset_prefix_cache)

    async def _call(self, function: Callable[[], T]) -> T:
        """The result of `function`, run on the engine's thread."""
        call = Call(function)
        return await self._answer(call, call.run)

    async def _call_foreign(self, function: Callable[[], T]) -> T:
        """The same, for the caller's own code, whose errors are his."""

        def run() -> T:
            self._watch.ladder.reset()
            return function()

        call = Call(run, is_foreign=True)
        return await self._answer(call, call.run)

    async def _answer(self, call: Call[T], command: Callable[[], None]) -> T:
        """Send a command that sees to `call`; its answer."""
        self.check_health()
        self._send_command(command)
        return await asyncio.wrap_future(call.answer)

    def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        return self._engine.stats()

    def check_health(self) -> None:
        """See `EngineClient.check_health`."""
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise EngineDeadError("the engine is shutting down and takes no new requests")

    async def shutdown(self, drain: bool = True) -> None:
        """See `EngineClient.shutdown`. May be called again with `drain=False` to cut a drain short."""
        self._is_closing = True
        with contextlib.suppress(EngineDeadError):
            self._send_command(lambda: self._stop(drain))
        await asyncio.to_thread(self._thread.join)

    def _send_command(self, command: Callable[[], None]) -> None:
        with self._lock:
            if self._is_closed:
                raise self._failure or _shut_down()
            self._commands.put(command)

    # -- on the engine's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._must_stop and not self._engine.has_unfinished_requests()):
                if self._engine.is_sleeping or not self._engine.has_unfinished_requests():
                    self._wait_for_command(self._watch.wait_s())
                self._take_commands()
                if self._engine.is_sleeping:
                    self._deliver(self._engine.take_pending())
                elif self._engine.has_unfinished_requests():
                    self._deliver(self._engine.step())
                self._watch.tend(is_quiet=self._commands.empty())
        except Exception as error:
            if not isinstance(error, EngineDeadError):
                logger.exception("the engine's thread failed")
            self._failure = error if isinstance(error, EngineDeadError) else EngineDeadError(f"engine failed: {error}")
        finally:
            self._is_closing = True
            try:
                self._engine.shutdown()
            except Exception:  # what broke the engine may break its end; nobody must wait for it all the same
                logger.exception("the engine's memory could not be given back")
            self._end_streams(self._failure or _shut_down())

    def _wait_for_command(self, timeout_s: float | None) -> None:
        with contextlib.suppress(queue.Empty):
            self._commands.get(timeout=timeout_s)()

    def _take_commands(self) -> None:
        """Run the commands that have come."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._commands.get_nowait()()

    def _enter(self, request: GenerateRequest, stream: OutputStream) -> None:
        self._engine.add_processed(request)
        self._streams[request.request_id] = stream
        if self.config.wakes_by_request:
            stream.take()

    def _abort(self, request_id: str, stream: OutputStream) -> None:
        # Another request may have taken the id since; it must not be aborted for this one.
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._engine.abort_request(request_id, wants_output=False)

    def _stop(self, drain: bool) -> None:
        self._must_stop = True
        self._watch.stop(self._failure or _shut_down())
        if not drain or self._engine.is_sleeping:
            for request_id in self._engine.unfinished_request_ids():
                self._engine.abort_request(request_id)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """Hand outputs over, with one wake-up per event loop: 200 streams must not cost 200 wake-ups a step."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[OutputStream, RequestOutput]]] = {}
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            if output.finished:
                del self._streams[output.request_id]
            by_loop.setdefault(stream.loop, []).append((stream, output))
        for loop, items in by_loop.items():
            call_on(loop, lambda items=items: [stream.items.put_nowait(output) for stream, output in items])

    def _end_streams(self, error: EngineDeadError) -> None:
        """Fail what is still open, and what was sent but not taken in yet: nobody waits forever."""
        with self._lock:
            self._is_closed = True
        self._must_stop = True
        self._watch.stop(error)
        self._take_commands()
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()


def _shut_down() -> EngineDeadError:
    return EngineDeadError("the engine has been shut down")


def _num_chars(prompt: Prompt) -> int:
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return len(text) if isinstance(text, str) else 0
