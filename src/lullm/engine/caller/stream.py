"""Streams of outputs, from an engine's thread to their reader: an event loop here, or another process."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lullm.engine.caller.backlog import Backlog
from lullm.errors import LullmError
from lullm.log import get_logger
from lullm.types.pooling.outputs import EngineOutput

logger = get_logger(__name__)


class Outlet(Protocol):
    """A channel that many streams share: the outputs of one step leave through it together."""

    def deliver(self, items: Sequence[tuple[Any, EngineOutput]]) -> None:
        """Deliver outputs, each with its stream. On the engine's thread."""
        ...


class Stream(Protocol):
    """Receives the outputs of one request. Methods: on the engine's thread.

    Attributes:
        sent_s: when the request was sent to the engine's thread.
        keep_alive: see `EngineClient.stream`.
        is_closed: the reader has gone.
        outlet: equal for streams whose outputs leave together.
    """

    sent_s: float
    keep_alive: float | None
    is_closed: bool

    @property
    def outlet(self) -> Outlet: ...

    def confirm(self) -> None:
        """The engine has the request."""
        ...

    def fail(self, error: LullmError) -> None:
        """The request ends with `error`."""
        ...


@dataclass(frozen=True, slots=True)
class LoopOutlet:
    """The outlet to an event loop. It wakes the loop once per step, not once per stream: 200 streams are common."""

    loop: asyncio.AbstractEventLoop

    def deliver(self, items: Sequence[tuple["OutputStream", EngineOutput]]) -> None:
        """See `Outlet`."""

        def put() -> None:
            for stream, output in items:
                stream.items.put(output)

        call_on(self.loop, put)


@dataclass(slots=True, eq=False)
class OutputStream:
    """The stream of a request whose reader is on an event loop of this process; see `Stream`.

    Attributes:
        is_taken: set on the loop once the engine has taken or refused the request.
        is_closed: written on the loop.
    """

    outlet: LoopOutlet
    sent_s: float
    keep_alive: float | None = None
    items: Backlog = field(default_factory=lambda: Backlog(is_delta=False))
    is_taken: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False

    def confirm(self) -> None:
        """The engine has the request. From any thread, as `fail`."""
        call_on(self.outlet.loop, self.is_taken.set)

    def fail(self, error: LullmError) -> None:
        """The request ends with `error`."""

        def put() -> None:
            self.items.put(error)
            self.is_taken.set()

        call_on(self.outlet.loop, put)


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Run `call` on the loop's thread, soon; do nothing if the loop is closed. From any thread."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop is closed, and its readers are gone
        logger.debug("an event loop was closed with requests open")
