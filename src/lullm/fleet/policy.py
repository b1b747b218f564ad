"""FleetPolicy: which models are awake within one budget of memory, and which requests wait for them.

Plain and synchronous: it reads a clock, decides, and has `Effects` done; their ends come back as calls. So a day of
load is tested in a second.

- A request for a model that is awake runs at once.
- Otherwise it waits, and its model claims memory. The claim whose request waits longest goes first; a younger one takes
  no memory that an older one waits for.
- Room is made by models that are idle, the least recently used first; then by sleeping ones, which are unloaded; then
  by busy ones, which close: their running requests end, new ones wait their turn. A model that has just become awake
  keeps its memory for a slice of time, so that its requests are computed together.
- No request waits longer than its bound; then it is refused.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from lullm.config.option.sleep_after import SleepRung
from lullm.errors import ConfigError, LullmError, ModelLoadError, ModelUnavailableError
from lullm.fleet.record import Cause, Change, ModelRecord, Terms, Ticket
from lullm.fleet.room import Room
from lullm.units import format_bytes


class Effects(Protocol):
    """What the policy has done. The calls return at once; the policy hears of the end by `awake`, `slept`, ..."""

    def load(self, name: str, cause: Cause) -> None:
        """Start an engine for the model."""
        ...

    def wake(self, name: str, cause: Cause) -> None:
        """Wake its engine."""
        ...

    def sleep(self, name: str, rung: SleepRung, cause: Cause) -> None:
        """Put its engine to sleep; no request runs."""
        ...

    def unload(self, name: str, cause: Cause) -> None:
        """End its engine; no request runs."""
        ...

    def admit(self, ticket: Ticket, wait_s: float) -> None:
        """The request may run now."""
        ...

    def refuse(self, ticket: Ticket, error: LullmError) -> None:
        """The request ends with `error`."""
        ...


class FleetPolicy:
    """The models of one budget.

    Args:
        slice_s: seconds that a model keeps its memory once it is awake, while others wait for it.
        clock: monotonic seconds.

    Attributes:
        records: by name. changes: how often (name, change, cause) was.

    Raises:
        ConfigError: a model can never fit.
    """

    def __init__(
        self,
        terms: Sequence[Terms],
        budget_bytes: int,
        slice_s: float,
        effects: Effects,
        clock: Callable[[], float],
    ):
        self.budget_bytes = budget_bytes
        self.changes: Counter[tuple[str, Change, Cause]] = Counter()
        self.records = {each.name: ModelRecord(each, clock) for each in terms}
        self._slice_s = slice_s
        self._effects = effects
        self._clock = clock
        for record in self.records.values():
            if (reason := self._misfit(record)) is not None:
                raise ConfigError(reason)

    @property
    def held_bytes(self) -> int:
        """The bytes of the budget that all models hold."""
        return sum(record.held_bytes for record in self.records.values())

    # -- requests ------------------------------------------------------------------------------------------------

    def ask(self, name: str, keep_alive: float | None = None, cause: Cause = "request") -> Ticket:
        """A request wants a model. It runs or waits until `leave`; `Effects` say which.

        Raises:
            ModelUnavailableError: too many wait for the model already, or it has just failed.
        """
        record, now = self.records[name], self._clock()
        if record.failure is not None and record.phase != "awake" and now < record.retry_at:
            raise ModelUnavailableError(
                f"the model {name!r} failed: {record.failure}; it is tried again in {record.retry_at - now:.0f} s",
                record.retry_at - now,
            )
        if len(record.waiting) >= record.terms.max_waiting:
            raise ModelUnavailableError(f"{len(record.waiting)} requests wait already for the model {name!r}")
        ticket = Ticket(name, now, now + record.terms.bound_s, cause, keep_alive)
        record.waiting[ticket] = None
        self._plan()
        return ticket

    def use(self, name: str) -> Ticket:
        """A call uses a model as it is, until `leave`: meanwhile it makes no room."""
        ticket = Ticket(name, self._clock(), float("inf"), "call")
        self.records[name].admit(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """A request has ended, running or waiting. Idempotent."""
        self.records[ticket.model].end(ticket)
        self._plan()

    # -- calls ---------------------------------------------------------------------------------------------------

    def ask_unload(self, name: str, wanted: bool = True) -> None:
        """Unload a model once its running requests have ended; or do not any more."""
        record = self.records[name]
        record.is_to_unload = wanted and record.phase != "unloaded"
        self._plan()

    def begin_sleep(self, name: str) -> bool:
        """A call puts a model to sleep, perhaps with running requests. Returns whether there is something to do."""
        record = self.records[name]
        if record.phase not in ("awake", "sleeping"):
            return False
        record.become("falling_asleep", record.held_bytes)
        self.changes[name, "sleep", "call"] += 1
        return True

    def pause(self, name: str, is_paused: bool) -> None:
        """A call has paused a model, or ended its pause."""
        self.records[name].is_paused = is_paused
        self._plan()

    # -- the ends of effects -------------------------------------------------------------------------------------

    def awake(self, name: str, weights_bytes: int | None = None) -> None:
        """A model is awake. `weights_bytes`: as measured."""
        record = self.records[name]
        if weights_bytes is not None and weights_bytes > record.need.weights_bytes:
            record.correct(record.need.awake_bytes + weights_bytes - record.need.weights_bytes)
        record.woke()
        self._plan()

    def stays_awake(self, name: str) -> None:
        """A sleep has failed, or only paused the model."""
        record = self.records[name]
        record.become("awake", record.held_bytes)
        self._plan()

    def slept(self, name: str, level: int, awake_bytes: int | None = None, asleep_bytes: int | None = None) -> None:
        """A model sleeps. `awake_bytes`, `asleep_bytes`: its memory before and now, as measured."""
        record = self.records[name]
        record.correct(awake_bytes, asleep_bytes)
        record.slept(level)
        self._plan()

    def unloaded(self, name: str) -> None:
        """A model's engine has ended."""
        record = self.records[name]
        record.become("unloaded", 0)
        record.is_to_unload = record.is_paused = False
        self._plan()

    def failed(self, name: str, error: str, is_loaded: bool = False) -> None:
        """A load or a wake-up has failed. Those that wait for it get the error. `is_loaded`: it sleeps as before."""
        record = self.records[name]
        record.become("sleeping" if is_loaded else "unloaded", record.need.asleep_bytes if is_loaded else 0)
        if not is_loaded:
            record.is_to_unload = record.is_paused = False
        record.fail(error)
        self._refuse_all(record, ModelLoadError(f"the model {name!r} could not be loaded: {error}"))
        self._plan()

    def lost(self, name: str, reason: str) -> None:
        """A model's engine has died. A later request starts another one."""
        record = self.records[name]
        if record.phase in ("awake", "sleeping"):
            record.failure = reason
            self._unload(record, "fault")
            self._plan()

    def close(self, error: LullmError) -> None:
        """The fleet ends: those that wait get `error`."""
        for record in self.records.values():
            self._refuse_all(record, error)

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due: refuse those that have waited too long, put idle models to sleep."""
        self._plan()

    def next_s(self) -> float | None:
        """Seconds until `tick` has something to do; None: nothing will become due by time alone."""
        now, times = self._clock(), []
        has_claims = any(record.waiting for record in self.records.values())
        for record in self.records.values():
            times += [ticket.deadline - now for ticket in record.waiting][:1]
            if has_claims and record.phase == "awake":
                times += [left for left in [record.yields_at(self._slice_s) - now] if left > 0]
            if record.may_rest and (step := record.ladder.next()) is not None:
                times.append(step[1])
        return max(min(times), 0.0) if times else None

    # -- decisions -----------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        records, now = self.records.values(), self._clock()
        for record in records:
            self._refuse_late(record, now)
            if record.is_to_unload and record.phase in ("awake", "sleeping") and not record.num_open:
                self._unload(record, "call")
        room = Room(records, self.budget_bytes, self._slice_s, now)
        for claim in room.claims():
            if (reason := self._misfit(claim)) is not None:
                claim.fail(reason)
                self._refuse_all(claim, ModelLoadError(reason))
            elif room.take(claim):
                self._start(claim)
            elif room.reserve(claim):
                self._evict(room, room.victims(claim))
        self._evict(room, room.surplus())
        for record in records:
            record.is_closing = record.is_to_unload or record in room.closing
            if record.phase == "awake" and not record.is_closing:
                for ticket in list(record.waiting):
                    record.admit(ticket)
                    self._effects.admit(ticket, now - ticket.since)
        self._rest()

    def _evict(self, room: Room, victims: Iterable[tuple[ModelRecord, bool]]) -> None:
        for victim, is_whole in victims:
            room.release(victim, is_whole)
            if victim.num_open:
                continue  # it closes, and makes room later
            rung = victim.terms.eviction
            if is_whole or rung is None or victim.phase == "sleeping":
                self._unload(victim, "budget")
            else:
                self._sleep(victim, rung, "budget")

    def _rest(self) -> None:
        for record in self.records.values():
            if record.may_rest and (rung := record.ladder.due()) is not None:
                self._sleep(record, rung, "idle")

    def _start(self, record: ModelRecord) -> None:
        ticket = record.oldest
        assert ticket is not None, "only those that are waited for have claims"
        change: Change = "wake" if record.phase == "sleeping" else "load"
        record.become("waking" if change == "wake" else "loading", record.need.awake_bytes)
        self.changes[record.terms.name, change, ticket.cause] += 1
        (self._effects.wake if change == "wake" else self._effects.load)(record.terms.name, ticket.cause)

    def _sleep(self, record: ModelRecord, rung: SleepRung, cause: Cause) -> None:
        record.become("falling_asleep", record.held_bytes)
        self.changes[record.terms.name, "sleep", cause] += 1
        self._effects.sleep(record.terms.name, rung, cause)

    def _unload(self, record: ModelRecord, cause: Cause) -> None:
        record.become("unloading", record.held_bytes)
        self.changes[record.terms.name, "unload", cause] += 1
        self._effects.unload(record.terms.name, cause)

    def _refuse_late(self, record: ModelRecord, now: float) -> None:
        late = [ticket for ticket in record.waiting if ticket.deadline <= now]
        for ticket in late:
            self._refuse(record, ticket, self._too_late(record))

    def _too_late(self, record: ModelRecord) -> ModelUnavailableError:
        name, bound_s = record.terms.name, record.terms.bound_s
        if record.phase in ("loading", "waking"):
            return ModelUnavailableError(
                f"the model {name!r} was not awake within {bound_s:g} s; it still is {record.phase}"
            )
        others = [each for each in self.records.values() if each.held_bytes and each is not record]
        shown = ", ".join(f"{each.terms.name} {format_bytes(each.held_bytes)}" for each in others)
        return ModelUnavailableError(
            f"no room for the model {name!r} within {bound_s:g} s: it needs {format_bytes(record.need.awake_bytes)} of "
            f"{format_bytes(self.budget_bytes)}, which others hold ({shown or 'nobody'}); try again later"
        )

    def _refuse_all(self, record: ModelRecord, error: LullmError) -> None:
        for ticket in list(record.waiting):
            self._refuse(record, ticket, error)

    def _refuse(self, record: ModelRecord, ticket: Ticket, error: LullmError) -> None:
        record.end(ticket)
        self._effects.refuse(ticket, error)

    def _misfit(self, record: ModelRecord) -> str | None:
        """Why a model can never be awake; None: it can."""
        pinned = sum(r.need.awake_bytes for r in self.records.values() if r.terms.is_pinned and r is not record)
        need = record.need
        if need.awake_bytes + pinned <= self.budget_bytes:
            return None
        adapters = f", adapters {format_bytes(need.adapters_bytes)}" if need.adapters_bytes else ""
        beside = f", of which pinned models hold {format_bytes(pinned)}" if pinned else ""
        return (
            f"the model {record.terms.name!r} needs {format_bytes(need.awake_bytes)} "
            f"(weights {format_bytes(need.weights_bytes)}, KV cache {format_bytes(need.kv_bytes)}{adapters}, working "
            f"memory {format_bytes(need.work_bytes)}), and the memory budget is "
            f"{format_bytes(self.budget_bytes)}{beside}; raise memory_budget, or lower the model's "
            "kv_cache_memory_bytes, or quantize it"
        )
