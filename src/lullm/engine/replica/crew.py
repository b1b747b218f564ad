"""Crew: starts and calls several engines together, and raises one error for all."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Container, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lullm.config.engine import EngineConfig
from lullm.config.engine_option import DEFAULT_WORKER_TIMEOUT_S
from lullm.config.user_option import DEFAULT_CPU_KV_SHARE
from lullm.engine.process.client import ProcessClient
from lullm.engine.start.model import OpenedModel
from lullm.errors import ConfigError, EngineDeadError, InvalidRequestError, LullmError
from lullm.executor.feeding import Feeding
from lullm.log import get_logger
from lullm.machine.cores import cpus_of_workers, read_cores
from lullm.machine.memory import available_memory_bytes
from lullm.units import MIB, format_bytes

T = TypeVar("T")

logger = get_logger(__name__)

PROCESS_BYTES = 200 * MIB
"""Memory of an engine's process without a model: Python and torch. Without this check, 1000 engines of the demo model
took all of 24 GiB and minutes of all cores before the first one failed.
"""


class Crew:
    """Engines in processes of their own, each on its share of the cores. The constructor returns once all are ready.

    Attributes:
        engines: by number.
        feeding: updates of weights that run in them.

    Raises:
        ConfigError: they need more memory than is available.
        LullmError and others: the error of the first engine that could not be started; the others are stopped.
    """

    def __init__(self, config: EngineConfig, stream_pause_s: float, model: OpenedModel):
        count = config.data_parallel_size
        check_room(count, available_memory_bytes())
        is_cpu = model.config.device == "cpu"
        cpus = [sorted(own) for own in cpus_of_workers(read_cores(), count)] if is_cpu else [None] * count
        environments = [{}] * count if is_cpu else _gpus_of_engines(config)
        self.feeding = Feeding()

        def start(number: int) -> ProcessClient:
            given = cpus[number], model, config.worker_timeout, environments[number]
            return ProcessClient(_of_one(config, is_cpu), stream_pause_s, *given)

        with ThreadPoolExecutor(count) as pool:
            starting = [pool.submit(start, number) for number in range(count)]
        self.engines = [each.result() for each in starting if each.exception() is None]
        errors = {number: error for number, each in enumerate(starting) if (error := each.exception()) is not None}
        if errors:
            self.close()
            number, first = next(iter(errors.items()))
            if len(errors) < count:  # else all failed by the same options
                logger.error("engine %d of %d could not be started", number, count)
            raise first

    async def all(self, call: Callable[[ProcessClient], Awaitable[T]]) -> list[T]:
        """The answers of all engines. Raises the first error, after all have answered."""
        answers, errors = await self.each(call)
        self.raise_first(errors)
        return list(answers.values())

    async def each(
        self, call: Callable[[ProcessClient], Awaitable[T]], engines: Container[ProcessClient] | None = None
    ) -> tuple[dict[int, T], dict[int, Exception]]:
        """(answers, errors) by the engine's number, once all have ended. `engines`: which to call; default: all."""
        self.feeding.check()
        called = {n: engine for n, engine in enumerate(self.engines) if engines is None or engine in engines}
        return await gathered({number: call(engine) for number, engine in called.items()})

    def raise_first(self, errors: Mapping[int, Exception], more: str = "") -> None:
        """Raise the error of the first engine, if any, with `more` after its text."""
        if not errors:
            return
        number, error = next(iter(errors.items()))
        if len(errors) == len(self.engines) and not isinstance(error, EngineDeadError):
            raise error  # a caller's mistake concerns no single engine
        raise self.named(number, error, more) from None

    def named(self, number: int, error: Exception, more: str = "") -> Exception:
        """The same error, with the number of the engine before its text."""
        text = f"engine {number} of {len(self.engines)}: {error}{more}"
        if isinstance(error, InvalidRequestError):
            return InvalidRequestError(text, error.param, error.code)
        kind = type(error) if isinstance(error, (LullmError, OSError)) else LullmError
        return kind(text)

    def close(self) -> None:
        """End all processes now, without an event loop. Idempotent."""
        for engine in self.engines:
            engine.close()


def check_room(count: int, available: int) -> None:
    """Check that `count` processes fit into `available` bytes. Raises ConfigError."""
    if count * PROCESS_BYTES > available:
        raise ConfigError(
            f"data_parallel_size={count} needs at least {format_bytes(count * PROCESS_BYTES)} for the processes "
            f"alone, and {format_bytes(available)} are available; choose at most {available // PROCESS_BYTES}"
        )


async def gathered(calls: Mapping[int, Awaitable[T]]) -> tuple[dict[int, T], dict[int, Exception]]:
    """Run calls at the same time; returns (answers, errors) once all have ended."""
    found = await asyncio.gather(*calls.values(), return_exceptions=True)
    answers: dict[int, T] = {}
    errors: dict[int, Exception] = {}
    for number, result in zip(calls, found, strict=True):
        if isinstance(result, Exception):
            errors[number] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[number] = result
    return answers, errors


def _gpus_of_engines(config: EngineConfig) -> list[dict[str, str]]:
    """Environments that give each engine as many GPUs as it has workers. Raises as `gpu_environments` does."""
    from lullm.device.choice import SEVERAL_UNTRIED, gpu_environments  # loads torch

    logger.warning(SEVERAL_UNTRIED)
    return gpu_environments(config.data_parallel_size, config.num_workers, "data_parallel_size")


def _of_one(config: EngineConfig, is_cpu: bool) -> EngineConfig:
    """The options of one engine. Shares of a CPU's memory are divided between the engines; each has its own GPU.

    An engine without worker processes takes no worker time-out; its own process has one.
    """
    has_workers = config.executor_backend != "uni"
    timeout_s = config.worker_timeout if has_workers else DEFAULT_WORKER_TIMEOUT_S
    alone = dataclasses.replace(config, data_parallel_size=1, worker_timeout=timeout_s)
    if not is_cpu:
        return alone
    share = config.gpu_memory_utilization or DEFAULT_CPU_KV_SHARE
    return dataclasses.replace(alone, gpu_memory_utilization=share / config.data_parallel_size)
