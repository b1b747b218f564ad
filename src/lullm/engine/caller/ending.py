"""Ending: what a client's `shutdown` returns, so that a script may await it or, as with vLLM, leave it."""

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any


class Ending(Coroutine[Any, Any, None]):
    """The end of an engine, which goes on whether or not somebody awaits it.

    A coroutine, as `asyncio.run` and `asyncio.create_task` want one; nothing warns where it is left.

    Args:
        rest: what is left of the end; None: nothing.
    """

    def __init__(self, rest: Awaitable[None] | None = None):
        self._rest = rest
        self._steps: Generator[Any, Any, None] | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        if self._rest is not None:
            yield from self._rest.__await__()

    def send(self, value: Any) -> Any:
        return self._begun().send(value)

    def throw(self, *error: Any) -> Any:
        return self._begun().throw(*error)

    def close(self) -> None:
        self._begun().close()

    def _begun(self) -> Generator[Any, Any, None]:
        self._steps = self._steps or self.__await__()
        return self._steps


_running: set[asyncio.Task[None]] = set()
"""An event loop holds its tasks weakly: an end that nobody awaits lives here."""


def ending(rest: Coroutine[Any, Any, None]) -> Ending:
    """An `Ending` whose rest runs in the background of the running event loop."""
    task = asyncio.get_running_loop().create_task(rest)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return Ending(task)
