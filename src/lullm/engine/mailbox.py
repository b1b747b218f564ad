"""What passes between event loops and the engine's thread: calls with an answer, and streams of outputs."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lullm.errors import EngineDeadError, LullmError
from lullm.log import get_logger
from lullm.types.outputs import RequestOutput

T = TypeVar("T")

logger = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Call(Generic[T]):
    """A call that runs on the engine's thread, and where its answer goes. Methods: on the engine's thread.

    Args:
        is_foreign: the function is, or calls, the caller's own code: its errors are his, not the engine's.
    """

    function: Callable[[], T]
    is_foreign: bool = False
    answer: Future[T] = field(default_factory=Future)

    def run(self) -> None:
        """Answer with the result or the error, unless nobody waits any more. An error nobody foresaw is raised too."""
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except Exception as error:
            if self.is_foreign or isinstance(error, (LullmError, OSError)):
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


@dataclass(slots=True, eq=False)
class OutputStream:
    """Where the outputs of one request go: the queue of the event loop that reads them.

    Attributes:
        sent_s: when the request was sent to the engine's thread. keep_alive: see `EngineClient.generate`.
        is_taken: set, on the loop, once the engine has taken or refused the request.
        is_closed: nobody reads any more; written on the loop.
    """

    loop: asyncio.AbstractEventLoop
    sent_s: float
    keep_alive: float | None = None
    items: asyncio.Queue[RequestOutput | LullmError] = field(default_factory=asyncio.Queue)
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False

    def take(self) -> None:
        """The engine has the request. From any thread, as the methods below."""
        call_on(self.loop, self.is_taken.set)

    def fail(self, error: LullmError) -> None:
        """The request ends with `error`."""

        def put() -> None:
            self.items.put_nowait(error)
            self.is_taken.set()

        call_on(self.loop, put)


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Run `call` on the loop's thread, soon; nothing happens if the loop is closed. From any thread."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop is closed: nobody listens any more
        logger.debug("an event loop was closed with requests open")
