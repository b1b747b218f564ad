"""EngineWork: loads, wakes, puts to sleep and unloads the engines of a fleet, each in a task, and tells the policy."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from lullm.config.engine import EngineConfig
from lullm.config.option.sleep_after import SleepRung
from lullm.engine.client import EngineClient
from lullm.errors import EngineDeadError, InvalidRequestError, LullmError
from lullm.fleet.engines import close_engine, on_thread, resident_bytes
from lullm.fleet.member import FleetMember
from lullm.fleet.record import Cause
from lullm.fleet.turns import Turns
from lullm.log import get_logger

logger = get_logger(__name__)

_TASKS_END_S = 5.0
"""Seconds that the end of a fleet waits for its tasks; a load that takes longer ends with the process."""


class EngineWork:
    """The tasks of one fleet. `open_`: makes an engine; blocks."""

    def __init__(self, members: Mapping[str, FleetMember], turns: Turns, open_: Callable[[EngineConfig], EngineClient]):
        self._members = members
        self._turns = turns
        self._policy = turns.policy
        self._open = open_
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    def load(self, name: str) -> None:
        """See `Effects`, for this method and the next three."""
        self.spawn(self._load(name))

    def wake(self, name: str, cause: Cause) -> None:
        self.spawn(self._wake(name, cause))

    def sleep(self, name: str, rung: SleepRung, cause: Cause) -> None:
        self.spawn(self._sleep(name, rung, cause))

    def unload(self, name: str) -> None:
        self.spawn(self._unload(name))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task that the end of the fleet waits for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, drain: bool) -> None:
        """End all engines."""
        self._is_over = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_TASKS_END_S)
        engines = [member.detach() for member in self._members.values()]
        await asyncio.gather(*(close_engine(engine, drain, gives_back=False) for engine in engines))

    async def settle(self, name: str, engine: EngineClient, level: int, before: Mapping[str, int]) -> None:
        """Tell the policy how an engine is after a sleep, or a try of one. `before`: its memory before."""
        if self._members[name].engine is not engine:
            return
        try:
            engine.check_running()
        except EngineDeadError as error:
            await self._fail(name, error)
            return
        if engine.sleep_state in ("awake", "paused"):
            self._turns.act(lambda: self._policy.stays_awake(name))
            return
        record, after = self._policy.records[name], await resident_bytes(engine)
        need = record.terms.need  # has the whole of what is touched bit by bit, or lies in no arena
        measured = sum(size for tag, size in before.items() if tag not in ("graphs", "lora"))
        awake_bytes = measured + need.work_bytes + need.adapters_bytes
        asleep_bytes = sum(after.values()) + need.asleep_bytes if after else None
        self._turns.act(lambda: self._policy.slept(name, level, awake_bytes, asleep_bytes))

    def look_after(self, name: str) -> None:
        """Notice an engine that has died."""
        engine = self._members[name].engine
        if engine is None or self._is_over or self._policy.records[name].phase not in ("awake", "sleeping"):
            return
        try:
            engine.check_running()
        except EngineDeadError as error:
            reason = f"its engine has died: {error}"
            logger.error("the model %s: %s", name, reason)
            self._turns.act(lambda: self._policy.lost(name, reason))
        except InvalidRequestError:  # it waits for weights of this caller, so it lives
            return

    async def _load(self, name: str) -> None:
        member = self._members[name]
        try:
            engine = await on_thread(lambda: self._open(member.engine_config), f"lullm-load-{name}")
        except Exception as error:
            if not isinstance(error, LullmError | OSError | MemoryError):
                logger.exception("the model %s could not be loaded", name)
            await self._fail(name, error)
            return
        if self._is_over:
            await close_engine(engine, drain=False, gives_back=False)
            return
        member.attach(engine)
        resident = await resident_bytes(engine)
        weights_bytes = resident.get("weights", 0) + resident.get("draft", 0)
        self._turns.act(lambda: self._policy.awake(name, weights_bytes))

    async def _wake(self, name: str, cause: Cause) -> None:
        member = self._members[name]
        assert member.engine is not None, "it sleeps"
        try:
            with member.because(cause):
                member.restored_bytes = (await member.engine.wake_up()).restored_bytes
        except LullmError as error:
            # The next load begins with the checkpoint, unless requests are kept that would be lost.
            keeps = self._policy.records[name].num_open > 0 and not isinstance(error, EngineDeadError)
            await self._fail(name, error, keeps)
            return
        self._turns.act(lambda: self._policy.awake(name))

    async def _sleep(self, name: str, rung: SleepRung, cause: Cause) -> None:
        member = self._members[name]
        engine = member.engine
        assert engine is not None, "it is loaded"
        before = await resident_bytes(engine)
        # The next turn of a conversation finds its prefix in the cache. Without room for the cache it sleeps anyway.
        has_cache = rung.level == 1 and member.config.enable_prefix_caching
        for keep_prefix_cache in (True, False) if has_cache else (False,):
            try:
                with member.because(cause):
                    await engine.sleep(rung.level, backup=rung.backup, keep_prefix_cache=keep_prefix_cache)
            except LullmError as error:
                logger.warning("the model %s could not go to sleep: %s", name, error)
            else:
                break
        if cause == "budget" and engine.sleep_state == "awake":
            await self._unload(name)  # its memory is promised to another
        else:
            await self.settle(name, engine, rung.level, before)

    async def _unload(self, name: str) -> None:
        await close_engine(self._members[name].detach(), drain=False)
        self._turns.act(lambda: self._policy.unloaded(name))

    async def _fail(self, name: str, error: Exception, keeps: bool = False) -> None:
        """A model's engine is no more, or sleeps on with its requests (`keeps`)."""
        reason = str(error) or type(error).__name__
        logger.error("the model %s failed: %s", name, reason)
        if not keeps:
            await close_engine(self._members[name].detach(), drain=False)
        self._turns.act(lambda: self._policy.failed(name, reason, keeps))
