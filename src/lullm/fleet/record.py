"""The records that the policy keeps: a model with its memory and its state, and the tickets of its requests."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from lullm.config.option.sleep_after import SleepRung
from lullm.engine.thread.ladder import SleepLadder

Phase = Literal["unloaded", "loading", "awake", "falling_asleep", "sleeping", "waking", "unloading"]
ModelState = Literal["unloaded", "loading", "awake", "falling_asleep", "sleeping", "waking", "unloading", "failed"]
"""A phase, or 'failed': the last load or wake-up failed, and the next request tries again."""

Cause = Literal["request", "preload", "call", "idle", "budget", "fault"]
"""The cause of a change: a request or an order to have the model, a call of its own, idle time (the ladder), memory for
another model, or an engine that has died.
"""
Change = Literal["load", "wake", "sleep", "unload"]

FIRST_RETRY_S = 1.0
"""Seconds after a failed load in which requests get its error; doubled by each further failure."""
LONGEST_RETRY_S = 60.0
IDLE_SHARE = 0.1
"""Share of a slice after which an idle model makes room: the next turn of one client is often another model's."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Need:
    """The memory of one model, in bytes, that of a draft model included.

    `work_bytes`: of a step, and of a process of its own; `adapters_bytes`: of the places of adapters, and of those that
    host memory keeps; `asleep_bytes`: what stays while it sleeps.
    """

    weights_bytes: int
    kv_bytes: int
    work_bytes: int = 0
    adapters_bytes: int = 0
    asleep_bytes: int = 0

    @property
    def awake_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.work_bytes + self.adapters_bytes


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy knows about a model from the start.

    Attributes:
        is_pinned: it never makes room for others.
        bound_s: the longest wait of a request, in seconds.
        max_waiting: the most requests that may wait for it.
        eviction: how it makes room; None: it is unloaded.
        rungs: of its own ladder of sleep.
    """

    name: str
    need: Need
    is_pinned: bool = False
    bound_s: float = 300.0
    max_waiting: int = 512
    eviction: SleepRung | None = SleepRung(0.0, 1, "auto")
    rungs: tuple[SleepRung, ...] = ()


@dataclass(slots=True, eq=False)
class Ticket:
    """A request's wish to have its model awake, from its arrival to its end.

    `since`, `deadline`: by the policy's clock. `number`: the order of all tickets.
    """

    model: str
    since: float
    deadline: float
    cause: Cause = "request"
    keep_alive: float | None = None
    is_admitted: bool = False
    is_over: bool = False
    number: int = field(default_factory=lambda: next(_numbers))


class ModelRecord:
    """One model.

    Attributes:
        need: corrected by measurements. held_bytes: of the budget, now.
        num_open: requests that run. waiting: tickets in order.
        failure: the reason of the last failure; None: there was none since it was last awake.
        is_closing: it makes room once its requests have ended; new ones wait.
        is_paused: a call has paused it, and only a call ends that.
        is_to_unload: a call has asked for it.
    """

    def __init__(self, terms: Terms, clock: Callable[[], float]):
        self.terms = terms
        self.need = terms.need
        self.phase: Phase = "unloaded"
        self.held_bytes = 0
        self.num_open = 0
        self.waiting: dict[Ticket, None] = {}
        self.awake_since = self.last_used = clock()
        self.failure: str | None = None
        self.retry_at = 0.0
        self.retry_s = 0.0
        self.is_closing = self.is_paused = self.is_to_unload = False
        self.ladder = SleepLadder(terms.rungs, clock)
        self._clock = clock

    @property
    def state(self) -> ModelState:
        """In one word, for users."""
        return "failed" if self.failure is not None and self.phase in ("unloaded", "sleeping") else self.phase

    @property
    def oldest(self) -> Ticket | None:
        """The ticket that waits longest."""
        return next(iter(self.waiting), None)

    @property
    def is_idle(self) -> bool:
        """Whether no request runs or waits."""
        return not self.num_open and not self.waiting

    @property
    def may_rest(self) -> bool:
        """Whether its ladder may put it to sleep, or deeper."""
        return self.is_idle and self.phase in ("awake", "sleeping") and not (self.is_paused or self.is_to_unload)

    def admit(self, ticket: Ticket) -> None:
        """The request runs from now on."""
        self.waiting.pop(ticket, None)
        ticket.is_admitted = True
        self.num_open += 1
        self.ladder.busy()
        self.ladder.keep_alive(ticket.keep_alive)

    def end(self, ticket: Ticket) -> None:
        """The request has ended, or does not wait any more. Idempotent."""
        if ticket.is_over:
            return
        ticket.is_over = True
        self.waiting.pop(ticket, None)
        if ticket.is_admitted:
            self.num_open -= 1
            self.last_used = self._clock()
            if not self.num_open:
                self.ladder.idle()

    def become(self, phase: Phase, held_bytes: int) -> None:
        """Enter a phase, with so many bytes of the budget."""
        self.phase, self.held_bytes = phase, held_bytes

    def yields_at(self, slice_s: float) -> float:
        """When it may make room for others: after its slice, or once it has been idle for a tenth of that."""
        end = self.awake_since + slice_s
        return end if self.num_open else min(end, self.last_used + IDLE_SHARE * slice_s)

    def correct(self, awake_bytes: int | None = None, asleep_bytes: int | None = None) -> None:
        """Take measured needs. Awake it is planned with the most that was seen: KV blocks are touched as they fill."""
        more = max((awake_bytes or 0) - self.need.awake_bytes, 0)
        self.need = replace(
            self.need,
            weights_bytes=self.need.weights_bytes + more,
            asleep_bytes=self.need.asleep_bytes if asleep_bytes is None else asleep_bytes,
        )

    def woke(self) -> None:
        """It is awake and has failed no more."""
        self.become("awake", self.need.awake_bytes)
        self.awake_since = self.last_used = self._clock()
        self.failure, self.retry_s, self.retry_at = None, 0.0, 0.0
        self.ladder.reset()

    def fail(self, reason: str) -> None:
        """A load or a wake-up has failed; requests get the reason for a while."""
        self.failure = reason
        self.retry_s = min(2 * self.retry_s, LONGEST_RETRY_S) if self.retry_s else FIRST_RETRY_S
        self.retry_at = self._clock() + self.retry_s

    def slept(self, level: int) -> None:
        """It sleeps; rungs of the ladder that are no deeper are left out."""
        self.become("sleeping", self.need.asleep_bytes)
        self.ladder.skip(lambda rung: level == 2 or (rung.level == 1 and rung.backup != "disk"))
