"""Room: the memory of one moment, who claims it, and who can make room. A query: it changes no model."""

from collections.abc import Iterable, Iterator

from lullm.fleet.record import ModelRecord

Victim = tuple[ModelRecord, bool]
"""A model that makes room, and whether it does so wholly (unloaded)."""


class Room:
    """The budget while the policy decides.

    Attributes:
        closing: busy models that are to make room once their requests have ended.
    """

    def __init__(self, records: Iterable[ModelRecord], budget_bytes: int, slice_s: float, now: float):
        self._records = list(records)
        self._now = now
        self._slice_s = slice_s
        self.closing: set[ModelRecord] = set()
        self._free = budget_bytes - sum(record.held_bytes for record in self._records)
        # What models that fall asleep, or will, give back.
        self._coming = sum(map(_coming, self._records))

    def claims(self) -> list[ModelRecord]:
        """Models that are waited for and need memory, the longest wait first."""
        found = [each for each in self._records if each.waiting and each.phase in ("unloaded", "sleeping")]
        return sorted(found, key=_age)

    def take(self, claim: ModelRecord) -> bool:
        """Take the memory that a claim needs. Returns whether it is free now; otherwise nothing changes."""
        want = claim.need.awake_bytes - claim.held_bytes
        if want > self._free:
            return False
        self._free -= want
        return True

    def reserve(self, claim: ModelRecord) -> bool:
        """Keep what becomes free for a claim, before younger ones. Returns whether others could ever make room."""
        want = claim.need.awake_bytes - claim.held_bytes
        others = sum(each.held_bytes for each in self._records if each is not claim and not _stays(each))
        if want > self._free + others:
            return False  # a paused model holds it; what is free must not wait for that
        self._free -= want
        return True

    def victims(self, claim: ModelRecord) -> list[Victim]:
        """Models that make room for a claim; empty: enough is on its way, or nobody can yet."""
        short = -(self._free + self._coming)
        if short <= 0:
            return []
        candidates = [each for each in self._candidates() if self._may_yield(each, claim)]
        for is_whole in (False, True):
            chosen = _fewest([(each, is_whole) for each in candidates], short)
            if chosen:
                return chosen
        return []

    def surplus(self) -> list[Victim]:
        """Idle models that make room because more is held than the budget allows: a measurement was above its plan."""
        short = -(self._free + self._coming) if not self.claims() else 0
        return _fewest([(each, False) for each in self._candidates() if each.is_idle], short) if short > 0 else []

    def release(self, victim: ModelRecord, is_whole: bool) -> None:
        """A victim makes room: soon, or once its requests have ended."""
        self._coming += _gain(victim, is_whole)
        if victim.num_open:
            self.closing.add(victim)

    def _candidates(self) -> Iterator[ModelRecord]:
        """The models that hold memory and may give it up: idle ones, then sleeping ones, then busy ones."""
        held = [each for each in self._records if each.held_bytes and not _stays(each) and each not in self.closing]
        awake = [each for each in held if each.phase == "awake"]
        yield from sorted((each for each in awake if not each.num_open), key=lambda each: each.last_used)
        yield from sorted((each for each in held if each.phase == "sleeping"), key=lambda each: each.last_used)
        # One that closes already stays the choice.
        busy = (each for each in awake if each.num_open)
        yield from sorted(busy, key=lambda each: (not each.is_closing, each.awake_since))

    def _may_yield(self, each: ModelRecord, claim: ModelRecord) -> bool:
        if each is claim or (each.waiting and _age(each) < _age(claim)):
            return False
        return each.phase != "awake" or self._now >= each.yields_at(self._slice_s)


def _age(record: ModelRecord) -> tuple[float, int]:
    ticket = record.oldest
    assert ticket is not None
    return ticket.since, ticket.number


def _coming(record: ModelRecord) -> int:
    """The bytes that a model is giving back now."""
    if record.phase == "unloading":
        return record.held_bytes
    return max(record.held_bytes - record.need.asleep_bytes, 0) if record.phase == "falling_asleep" else 0


def _stays(record: ModelRecord) -> bool:
    keeps_requests = record.phase == "sleeping" and record.num_open > 0  # put to sleep by a call, in the middle of them
    return record.terms.is_pinned or record.is_paused or keeps_requests


def _gain(record: ModelRecord, is_whole: bool) -> int:
    """The bytes that a model gives back by sleeping, or wholly. One that sleeps already can only be unloaded."""
    if is_whole or record.phase == "sleeping" or record.terms.eviction is None:
        return record.held_bytes
    return max(record.held_bytes - record.need.asleep_bytes, 0)


def _fewest(victims: list[Victim], short: int) -> list[Victim]:
    """The first victims that free `short` bytes together, without those that are not needed; empty: they cannot."""
    chosen: list[Victim] = []
    total = 0
    for victim in victims:
        if total >= short:
            break
        chosen.append(victim)
        total += _gain(*victim)
    if total < short:
        return []
    for victim in list(chosen):
        if total - _gain(*victim) >= short:
            chosen.remove(victim)
            total -= _gain(*victim)
    return chosen
