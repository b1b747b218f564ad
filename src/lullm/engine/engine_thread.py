"""EngineThread: the one thread that owns an `LLMEngine`: it steps, and between steps it does what others ask for.

Commands come through a queue; outputs go to the streams of their requests, each on its reader's event loop. The step
loop takes no lock. While the engine sleeps the thread runs commands only; when it sleeps and wakes is the business of
`SleepWatch`.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable

from lullm.config.engine import EngineConfig
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.mailbox import OutputStream, call_on
from lullm.engine.sleep_watch import SleepWatch
from lullm.errors import EngineDeadError
from lullm.log import get_logger
from lullm.types.outputs import RequestOutput
from lullm.types.request import GenerateRequest

logger = get_logger(__name__)


class EngineThread:
    """Runs from its construction until `stop`, or until the engine fails; then it has shut the engine down.

    Args:
        config: the one with the options that need a thread.

    Attributes:
        watch: puts the engine to sleep and wakes it, in commands.
    """

    def __init__(self, engine: LLMEngine, config: EngineConfig):
        self.watch = SleepWatch(engine, config, self._enter)
        self._engine = engine
        self._wakes_by_request = config.wakes_by_request
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, OutputStream] = {}  # owned by the thread
        self._failure: EngineDeadError | None = None
        self._is_closing = False  # no new requests
        self._is_closed = False  # no more commands; changes under the lock, so that none is sent and never read
        self._lock = threading.Lock()
        self._must_stop = False  # owned by the thread
        self._thread = threading.Thread(target=self._run, name="lullm-engine", daemon=True)
        self._thread.start()

    # -- from any thread -----------------------------------------------------------------------------------------

    def check_health(self) -> None:
        """Return if new requests are taken. Raises EngineDeadError otherwise, with the cause."""
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise EngineDeadError("the engine is shutting down and takes no new requests")

    def send(self, command: Callable[[], None]) -> None:
        """Have `command` run between two steps. Raises EngineDeadError if the thread has ended."""
        with self._lock:
            if self._is_closed:
                raise self._failure or _shut_down()
            self._commands.put(command)

    def admit(self, request: GenerateRequest, stream: OutputStream) -> None:
        """Have the request taken in, or refused on its stream. Raises as `send` does."""
        self.send(lambda: self.watch.admit(request, stream))

    def abort(self, request_id: str, stream: OutputStream) -> None:
        """Have the request aborted, if it still runs: nobody reads the stream any more."""
        with contextlib.suppress(EngineDeadError):
            self.send(lambda: self._abort(request_id, stream))

    def stop(self, drain: bool) -> None:
        """Take no new requests; end once the running ones have ended (`drain`) or been aborted. Does not wait."""
        self._is_closing = True
        with contextlib.suppress(EngineDeadError):
            self.send(lambda: self._stop(drain))

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    # -- on the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._must_stop and not self._engine.has_unfinished_requests()):
                if self._engine.is_sleeping() or not self._engine.has_unfinished_requests():
                    self._wait_for_command(self.watch.wait_s())
                self._take_commands()
                if self._engine.is_sleeping():
                    self._deliver(self._engine.take_pending())
                elif self._engine.has_unfinished_requests():
                    self._deliver(self._engine.step())
                self.watch.tend(is_quiet=self._commands.empty())
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
        if self._wakes_by_request:
            stream.take()

    def _abort(self, request_id: str, stream: OutputStream) -> None:
        # Another request may have taken the id since; it must not be aborted for this one.
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._engine.abort_request(request_id, wants_output=False)

    def _stop(self, drain: bool) -> None:
        self._must_stop = True
        self.watch.stop(self._failure or _shut_down())
        if not drain or self._engine.is_sleeping():
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
        self.watch.stop(error)
        self._take_commands()
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()


def _shut_down() -> EngineDeadError:
    return EngineDeadError("the engine has been shut down")
