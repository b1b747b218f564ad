"""Turns: calls the policy on the event loop, keeps its timer, and tells tickets how they came out."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from lullm.config.option.sleep_after import SleepRung
from lullm.errors import LullmError
from lullm.fleet.policy import FleetPolicy
from lullm.fleet.record import Cause, Terms, Ticket

T = TypeVar("T")


class Work(Protocol):
    """What is done to engines; see `Effects`."""

    def load(self, name: str) -> None: ...

    def wake(self, name: str, cause: Cause) -> None: ...

    def sleep(self, name: str, rung: SleepRung, cause: Cause) -> None: ...

    def unload(self, name: str) -> None: ...


class Turns:
    """The policy's `Effects`, and its only caller.

    Attributes:
        policy: for reading. work: set before the first turn.
    """

    work: Work

    def __init__(self, terms: Sequence[Terms], budget_bytes: int, slice_s: float):
        self.policy = FleetPolicy(terms, budget_bytes, slice_s, self, time.monotonic)
        self._outcomes: dict[Ticket, asyncio.Future[None]] = {}
        self._watchers: set[asyncio.Future[None]] = set()
        self._wait_observers: list[Callable[[str, float], None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def act(self, call: Callable[[], T]) -> T:
        """Call the policy, and set the timer for what it is to do next."""
        try:
            return call()
        finally:
            watchers, self._watchers = self._watchers, set()
            for watcher in watchers:
                if not watcher.done():
                    watcher.set_result(None)
            self._arm()

    def close(self, error: LullmError) -> None:
        """Refuse those that wait; the policy begins nothing by itself any more."""
        self._is_over = True
        self.act(lambda: self.policy.close(error))

    @contextlib.asynccontextmanager
    async def awake(self, name: str, keep_alive: float | None, cause: Cause) -> AsyncGenerator[None, None]:
        """A model is awake for as long as the context lasts. Raises ModelUnavailableError, ModelLoadError."""
        ticket = self.act(lambda: self.policy.ask(name, keep_alive, cause))
        try:
            await self._outcome(ticket)
            yield
        finally:
            self._outcomes.pop(ticket, None)
            self.act(lambda: self.policy.leave(ticket))

    @contextlib.contextmanager
    def used(self, name: str) -> Iterator[None]:
        """A model stays as it is for as long as the context lasts."""
        ticket = self.act(lambda: self.policy.use(name))
        try:
            yield
        finally:
            self.act(lambda: self.policy.leave(ticket))

    async def next_turn(self) -> None:
        """Return after the policy's next turn."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.add(watcher)
        await watcher

    def observe_waits(self, observer: Callable[[str, float], None]) -> None:
        """Call `observer` with a model's name and the seconds that a request has waited for it, for each request."""
        self._wait_observers.append(observer)

    # -- `Effects` -----------------------------------------------------------------------------------------------

    def load(self, name: str, cause: Cause) -> None:
        """See `Effects`, for this method and the next five."""
        self.work.load(name)

    def wake(self, name: str, cause: Cause) -> None:
        self.work.wake(name, cause)

    def sleep(self, name: str, rung: SleepRung, cause: Cause) -> None:
        self.work.sleep(name, rung, cause)

    def unload(self, name: str, cause: Cause) -> None:
        self.work.unload(name)

    def admit(self, ticket: Ticket, wait_s: float) -> None:
        outcome = self._outcome(ticket)
        if not outcome.done():
            outcome.set_result(None)
        if ticket.cause == "request":
            for observer in self._wait_observers:
                observer(ticket.model, wait_s)

    def refuse(self, ticket: Ticket, error: LullmError) -> None:
        outcome = self._outcome(ticket)
        if not outcome.done():
            outcome.set_exception(error)
            outcome.exception()  # if nobody waits any more, nobody is to complain

    # ------------------------------------------------------------------------------------------------------------

    def _outcome(self, ticket: Ticket) -> asyncio.Future[None]:
        """The outcome of a ticket; the policy may know it before `ask` returns."""
        if ticket not in self._outcomes:
            self._outcomes[ticket] = asyncio.get_running_loop().create_future()
        return self._outcomes[ticket]

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        next_s = None if self._is_over else self.policy.next_s()
        if next_s is not None:
            self._timer = asyncio.get_running_loop().call_later(next_s, lambda: self.act(self.policy.tick))
