"""HibernationCalls: the calls of `LLM` that write its requests to a folder, and go on with them in another process."""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lullm.errors import HibernatedError, HibernationError, UnsupportedError
from lullm.llm.exclusive import ExclusiveCalls
from lullm.types.hibernation.report import HibernationForecast, HibernationReport, ResumeReport
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest

if TYPE_CHECKING:
    from lullm.engine.llm_engine import LLMEngine  # loads torch


class HibernationCall:
    """A call of `hibernate`, which the thread that runs requests answers.

    Attributes:
        report, error: the outcome; both None: nobody has tried yet.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = path
        self.report: HibernationReport | None = None
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.report is not None or self.error is not None


class HibernationCalls(ExclusiveCalls):
    """Base of `LLM`."""

    _enqueued: list[GenerateRequest]
    _request_ids: "itertools.count[int]"

    def _open_hibernation(self) -> None:
        self._calls: list[HibernationCall] = []
        self._calls_lock = threading.Lock()
        # The requests of a hibernation, in the order of their arrival, with their last outputs once they have ended.
        self._resumed: dict[str, EngineOutput | None] = {}
        self._running_on: int | None = None  # the thread that runs requests

    def hibernate(self, path: str | os.PathLike[str]) -> HibernationReport:
        """Write all requests and their KV to the folder `path`, then shut down. Blocking.

        `resume` in an `LLM` of the same model and options, mostly in another process, goes on with them; then
        `wait_for_completion` returns their outputs. Requests are those of `enqueue`, and those of a `generate`, `chat`
        or `wait_for_completion` that another thread runs: it stops after its step and raises `HibernatedError`. Cached
        prefixes are written, too. An older hibernation in the folder is replaced.

        Raises:
            HibernationError: something else lies there, or the disk is full; all goes on.
            EngineAsleepError: memory is released; call `wake_up` first.
            UnsupportedError: replicas, or workers on several machines.
        """
        if self._running_on == threading.get_ident():
            raise HibernationError(
                "hibernate() was called in the middle of another call on this thread, as from a signal's handler; "
                "start a thread that calls it: threading.Thread(target=llm.hibernate, args=(path,)).start()"
            )
        call = HibernationCall(path)
        with self._calls_lock:
            self._calls.append(call)
        try:
            with self._exclusive():
                if not call.is_done:
                    self._answer(call, ())
        finally:
            with self._calls_lock:
                self._calls.remove(call)
        if call.error is not None:
            raise call.error
        assert call.report is not None, "it is done"
        return call.report

    def explain_hibernate(self) -> HibernationForecast:
        """What `hibernate` would write now. Changes nothing; raises as `hibernate` does."""
        with self._exclusive():
            return self._engine_here().explain_hibernate_with(self._enqueued, self._held_outputs())

    def resume(self, path: str | os.PathLike[str]) -> ResumeReport:
        """Take in what `hibernate` has written to the folder `path`, which stays as it is. Blocking.

        `wait_for_completion` runs the requests to their ends; other calls run them along. This object has no unfinished
        request, and forgets the prefixes that it has cached. If its KV cache is smaller, requests whose blocks find no
        room are computed again.

        Raises:
            HibernationError: the folder is damaged, or was written by another version of lullm, or with other weights
                or options, which the message names; this object and the folder are as before.
            EngineAsleepError: memory is released; call `wake_up` first.
            UnsupportedError: replicas, or workers on several machines.
        """
        with self._exclusive():
            engine = self._engine_here()
            if self._enqueued or self._resumed:
                raise HibernationError("this LLM has requests in its queue; resume before the first enqueue")
            report = engine.resume(path)
            self._resumed = dict.fromkeys(report.request_ids)
            numbers = [int(each) for each in report.request_ids if each.isdecimal()]
            self._request_ids = itertools.count(max(numbers, default=-1) + 1)
            return report

    def save_prefix_cache(self, path: str | os.PathLike[str]) -> HibernationReport:
        """Write the KV blocks that later prompts can find to the folder `path`; this object goes on. Blocking.

        An older hibernation in the folder is replaced. Raises as `hibernate` does.
        """
        with self._exclusive():
            return self._engine_here().save_prefix_cache(path)

    def load_prefix_cache(self, path: str | os.PathLike[str]) -> ResumeReport:
        """Replace the cached prefixes by those in the folder `path`, as far as there is room. Blocking.

        The folder is of `save_prefix_cache`, or of `hibernate`, whose requests stay there. Raises as `resume` does.
        """
        with self._exclusive():
            return self._engine_here().load_prefix_cache(path)

    @contextlib.contextmanager
    def _running_requests(self) -> Iterator[None]:
        """This thread runs requests, and does what `_hibernate_between_steps` says."""
        self._running_on = threading.get_ident()
        try:
            yield
        finally:
            self._running_on = None

    def _take_resumed(self) -> list[Any]:
        """The last outputs of resumed requests, in the order of their arrival. After an interrupt some are missing."""
        found = self._held_outputs()
        self._resumed = {request_id: None for request_id, output in self._resumed.items() if output is None}
        return found

    def _hibernate_between_steps(self, outputs: Sequence[EngineOutput]) -> None:
        """Hibernate if another thread has called for it. Raises HibernatedError: it is done, and the engine has ended.

        `outputs`: of requests that have ended in the running call.
        """
        if not self._calls:
            return
        with self._calls_lock:
            calls = [call for call in self._calls if not call.is_done]
        for call in calls:
            self._answer(call, outputs)
            if call.report is not None:
                raise HibernatedError(
                    f"the requests of this call are in {call.report.path}; resume({call.report.path!r}) in a new LLM, "
                    "then wait_for_completion(), goes on with them"
                )

    def _answer(self, call: HibernationCall, outputs: Sequence[EngineOutput]) -> None:
        try:
            held = [*self._held_outputs(), *outputs]
            call.report = self._engine_here().hibernate_with(call.path, self._enqueued, held)
        except Exception as error:
            call.error = error

    def _held_outputs(self) -> list[EngineOutput]:
        """The last outputs of resumed requests that have ended."""
        return [output for output in self._resumed.values() if output is not None]

    def _engine_here(self) -> "LLMEngine":
        """The engine. Raises UnsupportedError: there are several, in other processes."""
        engine: Any = self.llm_engine
        if not hasattr(engine, "hibernate_with"):
            raise UnsupportedError(
                "hibernation is not there for data_parallel_size above 1; give each replica an LLM of its own"
            )
        found: LLMEngine = engine
        return found
