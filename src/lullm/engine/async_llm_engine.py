"""AsyncLLMEngine: the engine on a thread of its own, behind asyncio streams. Implements `EngineClient`.

One thread owns the `LLMEngine` and steps it; everyone else sends it commands through a queue and gets outputs back on
his own event loop. The step loop takes no lock. While the engine sleeps the thread runs commands only.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lullm.config.engine import EngineConfig
from lullm.engine.llm_engine import LLMEngine
from lullm.errors import EngineAsleepError, EngineDeadError, LullmError, SleepCancelledError
from lullm.log import get_logger
from lullm.types.outputs import RequestOutput
from lullm.types.request import GenerateRequest, Prompt
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import SleepMode, SleepReport
from lullm.types.stats import EngineStats

T = TypeVar("T")

logger = get_logger(__name__)

_LONG_PROMPT_CHARS = 8192
"""Texts from here on are tokenized on a worker thread: a megabyte takes half a second, which a loop must not block."""


@dataclass(slots=True, eq=False)
class _Stream:
    """Where the outputs of one request go."""

    loop: asyncio.AbstractEventLoop
    items: asyncio.Queue[RequestOutput | LullmError] = field(default_factory=asyncio.Queue)


@dataclass(slots=True, eq=False)
class _Call(Generic[T]):
    """A call that runs on the engine's thread, and where its answer goes. Methods: on the engine's thread."""

    function: Callable[[], T]
    answer: Future[T] = field(default_factory=Future)

    def run(self) -> None:
        """Answer with the result or the error, unless nobody waits any more. An error nobody foresaw is raised too."""
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except Exception as error:
            if isinstance(error, (LullmError, OSError)):
                self.answer.set_exception(error)
            else:
                self.answer.set_exception(EngineDeadError(f"engine failed: {type(error).__name__}: {error}"))
                raise
        else:
            self.answer.set_result(result)

    def fail(self, error: LullmError) -> None:
        """Answer with `error`; the call does not run."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


class AsyncLLMEngine:
    """Builds its engine in the constructor, which blocks until the model is loaded, and starts the thread.

    Attributes and raised errors: see `EngineClient` and `LLMEngine`.
    """

    def __init__(self, config: EngineConfig):
        self._engine = LLMEngine(config)
        self.config = self._engine.config
        self.model_config = self._engine.model_config
        self.tokenizer = self._engine.tokenizer
        self.default_params = self._engine.default_params
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}  # owned by the engine's thread
        self._waiting_sleeps: list[_Call[SleepReport]] = []  # owned by the engine's thread
        self._failure: EngineDeadError | None = None
        self._is_closing = False  # no new requests
        self._is_closed = False  # no more commands; changes under the lock, so that none is sent and never read
        self._closing_lock = threading.Lock()
        self._must_stop = False  # owned by the engine's thread
        self._thread = threading.Thread(target=self._run, name="lullm-engine", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt: Prompt, params: SamplingParams, request_id: str, priority: int = 0
    ) -> AsyncGenerator[RequestOutput, None]:
        """See `EngineClient.generate`."""
        self.check_health()
        process = self._engine.input_processor.process
        if _num_chars(prompt) >= _LONG_PROMPT_CHARS:
            request = await asyncio.to_thread(process, request_id, prompt, params, priority)
        else:
            request = process(request_id, prompt, params, priority)
        self.check_health()
        stream = _Stream(asyncio.get_running_loop())
        self._send_command(lambda: self._add(request, stream))
        finished = False
        try:
            while not finished:
                item = await stream.items.get()
                finished = isinstance(item, LullmError) or item.finished
                if isinstance(item, LullmError):
                    raise item
                yield item
        finally:
            if not finished:
                with contextlib.suppress(EngineDeadError):
                    self._send_command(lambda: self._abort(request_id, stream))

    async def sleep(self, level: int = 1, mode: SleepMode = "keep", tags: Sequence[str] | None = None) -> SleepReport:
        """See `EngineClient.sleep`."""

        def begin() -> None:
            if mode != "wait" or self._engine.is_sleeping or not self._engine.has_unfinished_requests():
                call.run()
                return
            try:
                self._engine.check_sleep(level, mode, tags)
                self._check_running()
            except LullmError as error:
                call.fail(error)
            else:
                self._waiting_sleeps.append(call)

        def sleep() -> SleepReport:
            self._check_running()
            return self._engine.sleep(level, mode, tags)

        call = _Call(sleep)
        return await self._answer(call, begin)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """See `EngineClient.wake_up`."""

        def wake_up() -> None:
            self._check_running()
            self._engine.wake_up(tags)
            self._fail_waiting_sleeps(SleepCancelledError("wake_up was called before the running requests had ended"))

        call = _Call(wake_up)
        await self._answer(call, call.run)

    @property
    def is_sleeping(self) -> bool:
        """See `EngineClient.is_sleeping`."""
        return self._engine.is_sleeping

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """See `EngineClient.sleeping_tags`."""
        return self._engine.sleeping_tags

    async def reset_prefix_cache(self) -> None:
        """See `EngineClient.reset_prefix_cache`."""
        call = _Call(self._engine.reset_prefix_cache)
        await self._answer(call, call.run)

    async def _answer(self, call: _Call[T], command: Callable[[], None]) -> T:
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
        with self._closing_lock:
            if self._is_closed:
                raise self._failure or _shut_down()
            self._commands.put(command)

    # -- on the engine's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._must_stop and not self._engine.has_unfinished_requests()):
                self._take_commands(block=self._engine.is_sleeping or not self._engine.has_unfinished_requests())
                if self._engine.is_sleeping:
                    self._deliver(self._engine.take_pending())
                elif self._engine.has_unfinished_requests():
                    self._deliver(self._engine.step())
                self._run_waiting_sleeps()
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

    def _take_commands(self, block: bool) -> None:
        """Run the commands that have come; wait for one if there is nothing else to do."""
        try:
            self._commands.get(block=block)()
            while True:
                self._commands.get_nowait()()
        except queue.Empty:
            return

    def _add(self, request: GenerateRequest, stream: _Stream) -> None:
        try:
            if any(not call.answer.cancelled() for call in self._waiting_sleeps):
                raise EngineAsleepError("the engine is going to sleep once its running requests have ended")
            self._engine.add_processed(request)
        except LullmError as error:
            _send(stream, error)
        else:
            self._streams[request.request_id] = stream

    def _abort(self, request_id: str, stream: _Stream) -> None:
        # Another request may have taken the id since; it must not be aborted for this one.
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._engine.abort_request(request_id, wants_output=False)

    def _stop(self, drain: bool) -> None:
        self._must_stop = True
        self._fail_waiting_sleeps(_shut_down())
        if not drain or self._engine.is_sleeping:
            for request_id in self._engine.unfinished_request_ids():
                self._engine.abort_request(request_id)

    def _check_running(self) -> None:
        # A sleep during the drain would keep the very requests that the drain waits for.
        if self._must_stop:
            raise self._failure or _shut_down()

    def _run_waiting_sleeps(self) -> None:
        if not self._engine.has_unfinished_requests():
            calls, self._waiting_sleeps = self._waiting_sleeps, []
            for call in calls:
                call.run()
        elif self._engine.is_sleeping:
            error = SleepCancelledError("another call put the engine to sleep before the running requests had ended")
            self._fail_waiting_sleeps(error)

    def _fail_waiting_sleeps(self, error: LullmError) -> None:
        calls, self._waiting_sleeps = self._waiting_sleeps, []
        for call in calls:
            call.fail(error)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """Hand outputs over, with one wake-up per event loop: 200 streams must not cost 200 wake-ups a step."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, RequestOutput]]] = {}
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            if output.finished:
                del self._streams[output.request_id]
            by_loop.setdefault(stream.loop, []).append((stream, output))
        for loop, items in by_loop.items():
            _call_on(loop, lambda items=items: [stream.items.put_nowait(output) for stream, output in items])

    def _end_streams(self, error: EngineDeadError) -> None:
        """Fail what is still open, and what was sent but not taken in yet: nobody waits forever."""
        with self._closing_lock:
            self._is_closed = True
        self._must_stop = True
        self._take_commands(block=False)
        self._fail_waiting_sleeps(error)
        for stream in self._streams.values():
            _send(stream, error)
        self._streams.clear()


def _send(stream: _Stream, item: RequestOutput | LullmError) -> None:
    _call_on(stream.loop, lambda: stream.items.put_nowait(item))


def _shut_down() -> EngineDeadError:
    return EngineDeadError("the engine has been shut down")


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop is closed: nobody listens any more
        logger.debug("an event loop was closed with requests open")


def _num_chars(prompt: Prompt) -> int:
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    return len(text) if isinstance(text, str) else 0
