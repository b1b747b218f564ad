"""The engines of a fleet: made on a thread, asked for their memory, and ended so that their memory is free again."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from typing import TypeVar

from lullm.config.engine import EngineConfig
from lullm.engine.client import EngineClient
from lullm.errors import LullmError
from lullm.log import get_logger
from lullm.machine.memory import trim_malloc

logger = get_logger(__name__)

T = TypeVar("T")
Open = Callable[[EngineConfig, float, bool], EngineClient]
"""As `start_client`."""

END_S = 10.0
"""Seconds for an engine to end: a step in progress has to end first."""


def open_engine(config: EngineConfig, stream_pause_s: float, has_process: bool) -> EngineClient:
    """Make an engine. Blocks until its model is loaded; raises as `start_client` does."""
    from lullm.engine.factory import start_client

    return start_client(config, stream_pause_s, has_process)


async def on_thread(call: Callable[[], T], name: str) -> T:
    """The result of `call` on a thread that the end of the process does not wait for: a load may take minutes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = call()
        except BaseException as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await future


async def resident_bytes(engine: EngineClient) -> dict[str, int]:
    """Physical memory behind the engine's arenas, by tag; empty: it cannot say now."""
    try:
        found: dict[str, int] = (await engine.collective_rpc("resident_bytes"))[0]
    except (LullmError, OSError):
        return {}
    return found


async def close_engine(engine: EngineClient | None, drain: bool, gives_back: bool = True) -> None:
    """End an engine, if there is one. `gives_back`: the process goes on, so return its memory to the system."""
    if engine is None:
        return
    try:
        if drain:
            await engine.shutdown(drain=True)
        else:
            async with asyncio.timeout(END_S):
                await engine.shutdown(drain=False)
    except TimeoutError:
        logger.error("an engine did not stop within %g s", END_S)
    except (LullmError, OSError) as error:
        logger.error("an engine did not stop in order: %s", error)
    del engine
    if gives_back:
        await asyncio.to_thread(_give_back)


def _give_back() -> None:
    """Free what an engine's objects held in circles: `start_client` has frozen them."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    trim_malloc()
