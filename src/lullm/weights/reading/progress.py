"""Progress of long work, on a terminal: bytes, rate and the remaining time."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

_DELAY_S = 0.5
"""Shorter work shows no bar."""
_INTERVAL_S = 0.1


class Progress:
    """A bar on standard error, if that is a terminal.

    Args:
        what: the text before the bar. total_bytes: of all work.
    """

    def __init__(self, what: str, total_bytes: int):
        self._bar: Any = None
        if sys.stderr is not None and sys.stderr.isatty():
            from tqdm import tqdm  # 20 ms, for a terminal only

            self._bar = tqdm(
                desc=what,
                total=total_bytes,
                unit="B",
                unit_scale=True,
                leave=False,
                delay=_DELAY_S,
                mininterval=_INTERVAL_S,
                miniters=1,
                dynamic_ncols=True,
            )

    def add(self, num_bytes: int) -> None:
        """Count `num_bytes` more as done. From one thread at a time."""
        if self._bar is not None:
            self._bar.update(num_bytes)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: "TracebackType | None"
    ) -> None:
        if self._bar is not None:
            self._bar.close()
