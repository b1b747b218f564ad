"""Fleet: many models within one budget of memory, on one event loop, which the policy needs no lock for."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Mapping, Sequence

from lullm.config.resolved import ResolvedConfig
from lullm.engine.client import EngineClient
from lullm.engine.start.model import open_model
from lullm.errors import (
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    LullmError,
    ModelUnavailableError,
    SleepCancelledError,
)
from lullm.fleet.engines import Open, open_engine, resident_bytes
from lullm.fleet.member import FleetMember
from lullm.fleet.need import PlannedModel, check_fits_a_fleet, plan_model
from lullm.fleet.options import FleetOptions, ModelSpec, check_names
from lullm.fleet.policy import FleetPolicy
from lullm.fleet.record import Cause, ModelState, Terms
from lullm.fleet.turns import Turns
from lullm.fleet.work import EngineWork
from lullm.log import get_logger
from lullm.machine.memory import available_memory_bytes, memory_bound_bytes
from lullm.types.sleep import TAGS, SleepOptions, SleepReport, WakeReport
from lullm.units import format_bytes

logger = get_logger(__name__)

DEFAULT_SHARE = 0.9
"""The budget, if no option says it, as a share of the memory that is available at the start."""


class Fleet:
    """The models of one server. The constructor reads their folders and plans their memory; it loads none.

    Everything else is called on one event loop.

    Args:
        stream_pause_s, has_process: see `start_client`.
        has_sleep_calls: a server offers the endpoints for sleep; the fleet's own sleeps do not need them.
        open_: makes an engine; blocks.

    Attributes:
        members: by name, in the order of the specs.
        budget_bytes: of the memory of all.

    Raises:
        ConfigError: names that meet; a model that can never fit, or preloaded ones that do not fit together.
        ModelLoadError: a folder cannot be read.
    """

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        options: FleetOptions,
        stream_pause_s: float = 0.0,
        has_process: bool = False,
        has_sleep_calls: bool = False,
        open_: Open = open_engine,
    ):
        if not specs:
            raise ConfigError("a fleet needs a model")
        check_names(tuple(specs))
        _check_budget(specs, options.memory_budget)
        self.budget_bytes = options.memory_budget or int(DEFAULT_SHARE * available_memory_bytes())
        planned = {spec.name: _planned(spec, self.budget_bytes, has_process) for spec in specs}
        terms = [_terms(spec, planned[spec.name], options) for spec in specs]
        self._turns = Turns(terms, self.budget_bytes, options.model_slice_s)
        _check_preloaded(terms, [spec.name for spec in specs if spec.preload], self.budget_bytes)
        self.members = {
            spec.name: FleetMember(spec, planned[spec.name], self.policy.records[spec.name], self, has_sleep_calls)
            for spec in specs
        }
        self._work = EngineWork(self.members, self._turns, lambda config: open_(config, stream_pause_s, has_process))
        self._turns.work = self._work
        self._end: EngineDeadError | None = None
        self._shutdown: asyncio.Task[None] | None = None
        for each in terms:
            logger.info("the model %s needs %s awake", each.name, format_bytes(each.need.awake_bytes))

    @property
    def policy(self) -> FleetPolicy:
        """Who is awake, and who waits; for reading."""
        return self._turns.policy

    @property
    def turns(self) -> Turns:
        """The waits of its requests can be observed there."""
        return self._turns

    @property
    def config(self) -> ResolvedConfig:
        """The first model's: what concerns a server is the same in all. `enable_...`: any model takes such adapters."""
        configs = [member.config for member in self.members.values()]
        return dataclasses.replace(
            configs[0],
            enable_lora=any(each.enable_lora for each in configs),
            enable_prompt_adapter=any(each.enable_prompt_adapter for each in configs),
        )

    def states(self) -> dict[str, ModelState]:
        """The state of each model."""
        return {name: record.state for name, record in self.policy.records.items()}

    def start(self) -> None:
        """Begin to load the models that are to be there before their first request."""
        for member in self.members.values():
            if member.spec.preload:
                self._work.spawn(self._preload(member.name))

    def check_running(self) -> None:
        """Look after all engines. Raises EngineDeadError: the fleet has ended; never because of one model."""
        self.check_open()
        for name in self.members:
            self._work.look_after(name)

    def check_open(self) -> None:
        """Raises EngineDeadError: the fleet has ended."""
        if self._end is not None:
            raise self._end

    async def shutdown(self, drain: bool = True) -> None:
        """Refuse those that wait, and end all engines; running requests end first (`drain`) or are aborted.
        Idempotent.
        """
        if self._shutdown is None:
            self._end = EngineDeadError("the server has been shut down")
            self._turns.close(self._end)
            self._shutdown = asyncio.ensure_future(self._work.close(drain))
        await asyncio.shield(self._shutdown)

    # -- a member's `Keeper` -------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def hold(
        self, name: str, keep_alive: float | None = None, cause: Cause = "request"
    ) -> AsyncGenerator[EngineClient, None]:
        """The engine of a model, awake. Raises ModelUnavailableError, ModelLoadError, EngineDeadError."""
        self.check_open()
        try:
            async with self._turns.awake(name, keep_alive, cause):
                engine = self.members[name].engine
                if engine is None:
                    raise EngineDeadError(f"the engine of the model {name!r} has ended")
                yield engine
        except EngineDeadError:
            self._work.look_after(name)
            raise

    def use(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Keep a model as it is."""
        return self._turns.used(name)

    async def sleep_by_call(self, name: str, options: SleepOptions) -> SleepReport:
        """Raises as `EngineClient.sleep` does; SleepCancelledError: the model is loaded, woken or put to sleep now;
        EngineAsleepError: it is not awake, and so cannot be paused.
        """
        engine, policy = self.members[name].engine, self.policy
        if options.level == 0 and policy.records[name].phase != "awake":
            raise EngineAsleepError(f"the model {name!r} is not awake, so it cannot be paused; POST /models/load first")
        if engine is None:
            return SleepReport(options.level, (), 0, 0, 0.0)
        if options.level == 0:
            report = await engine.sleep(0, mode=options.mode)
            self._turns.act(lambda: policy.pause(name, True))
            return report
        if not self._turns.act(lambda: policy.begin_sleep(name)):
            raise SleepCancelledError(f"the model {name!r} is {policy.records[name].phase}; ask again")
        before: Mapping[str, int] = {}
        try:
            before = await resident_bytes(engine)
            return await engine.sleep(
                options.level,
                mode=options.mode,
                backup=options.backup,
                keep_prefix_cache=options.keep_prefix_cache,
            )
        finally:
            await asyncio.shield(self._work.spawn(self._work.settle(name, engine, options.level, before)))

    async def wake_by_call(self, name: str) -> WakeReport:
        """Load a model or wake it, in its turn, and end its pause. Raises as `hold` does."""
        record, engine = self.policy.records[name], self.members[name].engine
        started = time.monotonic()
        if record.is_paused and engine is not None:
            report = await engine.wake_up()
            self._turns.act(lambda: self.policy.pause(name, False))
            return report
        was_awake, member = record.phase == "awake", self.members[name]
        member.restored_bytes = 0
        async with self.hold(name, cause="call"):
            return WakeReport(() if was_awake else TAGS, member.restored_bytes, time.monotonic() - started)

    async def unload(self, name: str) -> bool:
        """End a model's engine once its running requests have ended. Returns whether it was there.

        Raises ModelUnavailableError: they have not ended within the model's bound.
        """
        record = self.policy.records[name]
        if record.phase == "unloaded":
            return False
        self._turns.act(lambda: self.policy.ask_unload(name))
        try:
            async with asyncio.timeout(record.terms.bound_s):
                while record.is_to_unload:
                    await self._turns.next_turn()
        except TimeoutError:
            raise ModelUnavailableError(
                f"{record.num_open} requests of the model {name!r} have not ended within {record.terms.bound_s:g} s"
            ) from None
        finally:
            self._turns.act(lambda: self.policy.ask_unload(name, wanted=False))
        return True

    async def _preload(self, name: str) -> None:
        try:
            async with self.hold(name, cause="preload"):
                logger.info("the model %s is loaded", name)
        except LullmError as error:
            logger.error("preloading: %s", error)


def _check_budget(specs: Sequence[ModelSpec], given: int | None) -> None:
    """Check the budget that was given. Raises ConfigError: a GPU's must be."""
    if given is None and any(spec.config.place != "cpu" for spec in specs):
        raise ConfigError("several models on a GPU need a memory_budget: how much of its memory they may take")
    if given is not None and given > (bound := memory_bound_bytes()):
        logger.warning("the memory budget is above the %s of this machine", format_bytes(bound))


def _planned(spec: ModelSpec, budget_bytes: int, has_process: bool) -> PlannedModel:
    check_fits_a_fleet(spec.config)
    return plan_model(spec.config, open_model(spec.config), budget_bytes, has_process)


def _terms(spec: ModelSpec, planned: PlannedModel, options: FleetOptions) -> Terms:
    idle = spec.config.idle
    bound_s = min(options.max_model_wait_s, idle.wake_timeout)
    waiting = idle.max_num_wake_waiting
    return Terms(spec.name, planned.need, spec.pinned, bound_s, waiting, spec.eviction, idle.rungs)


def _check_preloaded(terms: Sequence[Terms], names: Sequence[str], budget_bytes: int) -> None:
    """Check that the models that are preloaded fit together with the pinned ones. Raises ConfigError otherwise."""
    each = {one.name: one.need.awake_bytes for one in terms if one.name in names}
    if sum(each.values()) > budget_bytes:
        shown = ", ".join(f"{name} {format_bytes(size)}" for name, size in each.items())
        raise ConfigError(
            f"the models to preload do not fit together into {format_bytes(budget_bytes)} ({shown}); preload fewer, or "
            "raise memory_budget"
        )
