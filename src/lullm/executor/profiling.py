"""WorkersProfiler: torch's profiler over the steps of all workers, wherever they are."""

from pathlib import Path

from lullm.executor.protocol import Executor


class WorkersProfiler:
    """Records between `start` and `stop`, both called on the thread that steps the engine."""

    def __init__(self, executor: Executor):
        self._executor = executor

    def start(self, folder: str | Path) -> None:
        """Begin. Raises InvalidRequestError: a recording runs. LullmError: the folder cannot be made."""
        self._executor.collective_rpc("start_profile", args=(Path(folder).absolute(),))

    def stop(self) -> Path:
        """End; the trace file of the first worker, beside those of the others.

        Raises InvalidRequestError: nothing is recorded. LullmError: it cannot be written.
        """
        path: Path = self._executor.collective_rpc("stop_profile")[0]
        return path
