"""EngineCalls: the calls of an `EngineClient` that its engine's thread answers, in this process or in another."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, Unpack

from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.sleep import (
    ForecastArguments,
    SleepArguments,
    SleepForecast,
    SleepMode,
    SleepOptions,
    SleepReport,
    WakeReport,
    check_tags,
)
from lullm.types.watch.occupancy import Occupancy

T = TypeVar("T")


class EngineCalls(ABC):
    """Every call by its name on the engine's side, with arguments that can cross to another process."""

    @abstractmethod
    async def _call(self, verb: str, kind: type[T], **arguments: Any) -> T:
        """The engine's answer, a `kind`, behind the requests that came before. `verb`: see `ThreadedEngine.call`."""

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End a request, or several: each has a last output with the reason 'abort'. Unknown ids are ignored."""
        given = [request_id] if isinstance(request_id, str) else list(request_id)
        await self._call("abort_request", NoneType, request_id=given)

    async def sleep(self, level: int = 1, **arguments: Unpack[SleepArguments]) -> SleepReport:
        """Release memory; returns once it is released. Idempotent. The arguments are those of `SleepOptions`."""
        return await self._call("sleep", SleepReport, **dataclasses.asdict(SleepOptions(level, **arguments)))

    async def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        """Bring back what `sleep` released (`tags` None: all). Idempotent. Cancels a sleep that still waits."""
        check_tags(tags)
        return await self._call("wake_up", WakeReport, tags=tags and list(tags))

    async def explain_sleep(self, level: int = 1, **arguments: Unpack[ForecastArguments]) -> SleepForecast:
        """What such a `sleep` would do now, and how long waking would take. Changes nothing."""
        SleepOptions(level, **arguments)
        return await self._call("explain_sleep", SleepForecast, level=level, **arguments)

    async def pause_generation(self, mode: SleepMode = "abort", clear_cache: bool = True) -> None:
        """Stop scheduling, as `sleep(0, mode=mode)` does; then forget cached prefixes, but not with mode 'keep'."""
        await self.sleep(0, mode=mode)
        if clear_cache and mode != "keep":
            await self.reset_prefix_cache()

    async def resume_generation(self) -> None:
        """End a pause. Idempotent. Raises EngineAsleepError if memory is released, which is for `wake_up`."""
        await self._call("resume", NoneType)

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; running requests keep theirs, or are computed again. Raises EngineDeadError."""
        return await self._call("reset_prefix_cache", bool, reset_running_requests=reset_running_requests)

    async def occupancy(self, max_cells: int) -> Occupancy:
        """Who holds which part of the KV cache, after the running step. Neither wakes the engine nor keeps it awake."""
        return await self._call("occupancy", Occupancy, max_cells=max_cells)

    async def expert_load(self, clear: bool = False) -> ExpertLoad:
        """How many tokens have used each expert. `clear`: it is counted anew from now on."""
        return await self._call("expert_load", ExpertLoad, clear=clear)

    async def rebalance_experts(self) -> ExpertMove:
        """Move experts, so that all workers have as much to do. Raises as `LLMEngine.rebalance_experts` does."""
        return await self._call("rebalance_experts", ExpertMove)

    async def start_profile(self, folder: str | Path = "profile") -> None:
        """Record where the time goes, until `stop_profile`. Raises as `Profiler.start` does."""
        await self._call("start_profile", NoneType, folder=str(Path(folder).absolute()))

    async def stop_profile(self) -> Path:
        """End the recording; the trace in the folder, for chrome://tracing. Raises as `Profiler.stop` does."""
        return Path(await self._call("stop_profile", str))
