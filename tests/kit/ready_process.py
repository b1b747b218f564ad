"""Runs scripts as processes of their own, but imports torch once: each is forked from one that has done it."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

TIMEOUT_S = 120


class ReadyProcess:
    """The process that forks. For scripts that do not measure their own start."""

    def __init__(self, environment: dict[str, str]):
        server = str(Path(__file__).with_name("ready_server.py"))
        self._process = subprocess.Popen(
            [sys.executable, server],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process, contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def run(self, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True)`."""
        process = self._process
        assert process.stdin and process.stdout
        with tempfile.NamedTemporaryFile("r") as output, tempfile.NamedTemporaryFile("r") as errors:
            call = {"path": str(path), "arguments": arguments, "output": output.name, "errors": errors.name}
            print(json.dumps(call), file=process.stdin, flush=True)
            is_done, _, _ = select.select([process.stdout], [], [], TIMEOUT_S)
            status = process.stdout.readline() if is_done else ""
            if not status:  # none is coming any more, so the next script fails, too
                os.killpg(process.pid, signal.SIGKILL)
                raise AssertionError(f"{path} did not end within {TIMEOUT_S} s: {output.read()}{errors.read()}")
            return subprocess.CompletedProcess([str(path), *arguments], int(status), output.read(), errors.read())
