"""Profiler: torch's profiler over the steps of one engine, as a trace file for chrome://tracing or Perfetto."""

import time
from pathlib import Path

import torch

from lullm.errors import InvalidRequestError, LullmError


class Profiler:
    """Records between `start` and `stop`, both called on the thread that computes. `suffix`: of its files' names."""

    def __init__(self, suffix: str = "") -> None:
        self._suffix = suffix
        self._recording: torch.profiler.profile | None = None
        self._folder = Path()

    def start(self, folder: str | Path) -> None:
        """Begin. Raises InvalidRequestError: a recording runs. LullmError: the folder cannot be made."""
        if self._recording is not None:
            raise InvalidRequestError("a profile is being recorded; end it with stop_profile first")
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LullmError(f"the profile's folder {folder} cannot be made: {error}") from None
        self._recording = torch.profiler.profile(record_shapes=True)
        self._recording.start()

    def stop(self) -> Path:
        """End; returns the trace. Raises InvalidRequestError: no profile runs. LullmError: it cannot be written."""
        if self._recording is None:
            raise InvalidRequestError("no profile is being recorded; begin one with start_profile")
        recording, self._recording = self._recording, None
        recording.stop()
        path = (
            self._folder / f"lullm-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 10**6:06}{self._suffix}.json"
        )
        try:
            recording.export_chrome_trace(str(path))
        except (OSError, RuntimeError) as error:
            raise LullmError(f"the profile cannot be written to {path}: {error}") from None
        return path
