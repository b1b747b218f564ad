"""A process that ends with its `with`, whatever fails inside."""

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any


@contextlib.contextmanager
def running(command: Sequence[str], start: Any = subprocess.Popen, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """As `with Popen`, which waits for the process after a failure, too: a wrong word stopped a run for 20 minutes.

    `start`: `Popen` itself, or `kit.ready_process.ReadyPopen`.
    """
    with start(command, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
