"""Results of `gpu_check.py`, a line of JSON each, on disk as soon as they are known.

A line has a 'row' and a 'state': 'begun' and 'ended' (the row itself), 'planned' (`names` to come), or the outcome of
one thing (`what`): 'passed', 'failed' (`error`), 'skipped' (`why`), with `figures`.
"""

import contextlib
import json
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class Lines:
    """Appends the lines of one row to a file; several processes may do so at a time."""

    def __init__(self, path: Path, row: str):
        self.path, self.row = path, row
        self._started = time.perf_counter()

    def write(self, state: str, **values: Any) -> None:
        line = {"row": self.row, "state": state, "at_s": round(time.perf_counter() - self._started, 2), **values}
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())  # at once, so that lines do not mix
            os.fsync(file)
        finally:
            os.close(file)
        print(json.dumps(line), flush=True)  # for the row's log

    def plan(self, names: Sequence[str]) -> None:
        """What is to come: of these, those without a line later were not reached."""
        self.write("planned", names=list(names))

    def passed(self, what: str, **figures: Any) -> None:
        self.write("passed", what=what, figures=figures)

    def failed(self, what: str, error: str, **figures: Any) -> None:
        self.write("failed", what=what, error=error, figures=figures)

    def skipped(self, what: str, why: str) -> None:
        self.write("skipped", what=what, why=why)

    @contextlib.contextmanager
    def case(self, what: str) -> Iterator[dict[str, Any]]:
        """What the block puts into the dictionary is written at its end, and its error if it ends by one."""
        figures: dict[str, Any] = {}
        try:
            yield figures
        except Exception as error:
            traceback.print_exc()
            message = str(error).strip().splitlines() or [""]
            self.failed(what, f"{type(error).__name__}: {message[0][:300]}", **figures)
        else:
            self.passed(what, **figures)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Those that are whole: a process may have been ended while it wrote."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(text))
    return found


def write_whole(path: Path, text: str) -> None:
    """The file has its old content or this one, whenever the power goes."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text)
    unfinished.replace(path)
