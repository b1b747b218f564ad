"""File descriptors: as many as the system grants, and one line a minute when there are none left."""

import asyncio
import contextlib
import errno
import os
import resource
import time
from typing import Any

from lullm.log import get_logger

logger = get_logger(__name__)

KEPT_FREE = 32  # for weight files, backups and libraries
MOST_REFUSALS = 1024
MOST = 1 << 20  # a hard limit can be infinite, which a soft one must not be
LOG_EVERY_S = 60.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_descriptor_limit() -> None:
    """Raise the process's soft limit to its hard limit. For a process that owns itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower bound of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connection_bound(max_connections: int) -> int:
    """How many connections fit: `max_connections`, or what the descriptor limit leaves beside KEPT_FREE; at least 1."""
    bound = max(1, min(max_connections, _num_free() - KEPT_FREE))
    if bound < max_connections:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        logger.warning("the limit of %d open files leaves room for %d connections; raise `ulimit -n`", limit, bound)
    return bound


def refusal_bound(num_connections: int) -> int:
    """How many refused connections may be open beside these: half of KEPT_FREE, and more if there is room."""
    return max(KEPT_FREE // 2, min(MOST_REFUSALS, _num_free() - num_connections - KEPT_FREE))


def _num_free() -> int:
    """Descriptors that may still be opened."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return MOST if limit == resource.RLIM_INFINITY else limit - len(os.listdir(folder))


class ExhaustionLog:
    """The loop's exception handler. asyncio reports up to 2048 failed accepts a second: 12 MB of log in 5 s."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _EXHAUSTED):
            loop.default_exception_handler(context)
        elif time.monotonic() - self._last >= LOG_EVERY_S:
            self._last = time.monotonic()
            logger.error("a connection could not be accepted: %s (told once a minute)", error)
