"""Logging: one logger per module; nothing is configured at import, only by a face that owns the process."""

import logging
import sys


def get_logger(name: str) -> logging.Logger:
    """The logger of a module; call it with `__name__`."""
    return logging.getLogger(name)


def log_to_stderr(level: str = "INFO") -> None:
    """Send lullm's records to stderr. Called by the command line, never by the library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger("lullm")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its only warning in a server: "socket.send() raised exception." for every piece to a client that has just gone.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
