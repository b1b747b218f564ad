"""A fleet in simulated time: its policy over models that load, wake and sleep within seconds of a clock that jumps."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from lullm.config.option.sleep_after import SleepRung
from lullm.errors import LullmError
from lullm.fleet.policy import FleetPolicy
from lullm.fleet.record import Need, Terms, Ticket

GIB = 1 << 30


def terms(name: str, awake: float = 1.0, asleep: float = 0.0, **facts) -> Terms:
    """A model that needs so many GiB."""
    return Terms(name, Need(int(awake * GIB), 0, asleep_bytes=int(asleep * GIB)), **facts)


@dataclass
class SimulatedFleet:
    """The policy's effects take `load_s`, `wake_s`, `sleep_s`; what happened is in `log` as (time, what, model).

    `failing`: models whose next loads fail. Invariants are checked after every event.
    """

    models: list[Terms]
    budget: float
    slice_s: float = 5.0
    load_s: float = 2.0
    wake_s: float = 0.5
    sleep_s: float = 0.2
    now: float = 100.0
    log: list[tuple[float, str, str]] = field(default_factory=list)
    refused: list[tuple[Ticket, LullmError]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    failing: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._run_s: dict[Ticket, float] = {}
        self._next_s: float | None = None
        self.policy = FleetPolicy(self.models, int(self.budget * GIB), self.slice_s, self, lambda: self.now)

    # -- effects ---------------------------------------------------------------------------------------------------

    def load(self, name: str, cause: str) -> None:
        self._begun("load", name, self.load_s, self._loaded)

    def wake(self, name: str, cause: str) -> None:
        self._begun("wake", name, self.wake_s, self._loaded)

    def sleep(self, name: str, rung: SleepRung, cause: str) -> None:
        assert self.policy.records[name].num_open == 0, "no victim with running requests"
        self._begun(f"sleep {rung.level} {cause}", name, self.sleep_s, lambda n: self.policy.slept(n, rung.level))

    def unload(self, name: str, cause: str) -> None:
        assert self.policy.records[name].num_open == 0 or cause == "fault", "no victim with running requests"
        self._begun(f"unload {cause}", name, self.sleep_s, self.policy.unloaded)

    def admit(self, ticket: Ticket, wait_s: float) -> None:
        record = self.policy.records[ticket.model]
        assert record.phase == "awake" and wait_s <= record.terms.bound_s
        self.waits.append(wait_s)
        self.log.append((self.now, "admit", ticket.model))
        seconds = self._run_s.get(ticket, self._next_s)
        assert seconds is not None
        self.at(seconds, lambda: self.policy.leave(ticket))

    def refuse(self, ticket: Ticket, error: LullmError) -> None:
        assert self.now - ticket.since <= self.policy.records[ticket.model].terms.bound_s + 1e-6
        self.refused.append((ticket, error))

    # -- time ------------------------------------------------------------------------------------------------------

    def at(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run `call` in so many seconds."""
        heapq.heappush(self._events, (self.now + delay_s, next(self._numbers), call))

    def run(self, seconds: float = float("inf"), most: int = 1_000_000) -> None:
        """Let time pass, or until nothing is left to happen."""
        end = self.now + seconds
        for _ in range(most):
            due_s = self.policy.next_s()
            tick_at = float("inf") if due_s is None else self.now + due_s
            event_at = self._events[0][0] if self._events else float("inf")
            at = min(tick_at, event_at)
            if at > end or at == float("inf"):
                break
            self.now = max(at, self.now)
            if event_at <= tick_at:
                heapq.heappop(self._events)[2]()
            else:
                self.policy.tick()
            self.check()
        else:
            raise AssertionError("time stands still")
        if end != float("inf"):
            self.now = end

    def check(self) -> None:
        """The invariants."""
        assert self.policy.held_bytes <= self.policy.budget_bytes
        for record in self.policy.records.values():
            assert record.num_open >= 0
            assert all(ticket.deadline > self.now - 1e-6 for ticket in record.waiting)

    def request(self, name: str, seconds: float = 1.0, **facts) -> Ticket:
        """A request that runs for so long once it is admitted."""
        self._next_s = seconds  # of a request that is admitted before `ask` returns
        ticket = self.policy.ask(name, **facts)
        self._next_s = None
        self._run_s[ticket] = seconds
        return ticket

    def said(self, *kinds: str) -> list[str]:
        """The log of these kinds, such as 'load a'."""
        return [f"{what} {name}" for _, what, name in self.log if not kinds or what.split()[0] in kinds]

    def _begun(self, what: str, name: str, seconds: float, end: Callable[[str], None]) -> None:
        self.log.append((self.now, what, name))
        self.check()
        self.at(seconds, lambda: end(name))

    def _loaded(self, name: str) -> None:
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            self.policy.failed(name, "the disk is on fire")
        else:
            self.policy.awake(name)
