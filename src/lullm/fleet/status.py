"""ModelStatus: how one model of a fleet stands at a moment, as plain data. Taking it wakes nothing."""

from dataclasses import dataclass

from lullm.fleet.record import ModelRecord, ModelState, Need


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model.

    Attributes:
        state: 'failed': its last load or wake-up failed; its next request tries again.
        reason: of the failure; None: there was none.
        held_bytes: of the budget, now. need: the most that it may hold.
        num_running, num_waiting: its requests.
        is_pinned, preload: as its `ModelSpec` says.
    """

    name: str
    aliases: tuple[str, ...]
    model: str
    state: ModelState
    reason: str | None
    held_bytes: int
    need: Need
    num_running: int
    num_waiting: int
    is_pinned: bool
    preload: bool

    @property
    def is_loaded(self) -> bool:
        """Whether an engine is there, awake or asleep."""
        return self.state in ("awake", "falling_asleep", "sleeping", "waking")


def status_of(record: ModelRecord, aliases: tuple[str, ...], model: str, preload: bool) -> ModelStatus:
    """The status of a record's model."""
    return ModelStatus(
        name=record.terms.name,
        aliases=aliases,
        model=model,
        state=record.state,
        reason=record.failure,
        held_bytes=record.held_bytes,
        need=record.need,
        num_running=record.num_open,
        num_waiting=len(record.waiting),
        is_pinned=record.terms.is_pinned,
        preload=preload,
    )
