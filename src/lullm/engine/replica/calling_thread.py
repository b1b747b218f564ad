"""CallingThread: runs calls from another thread's event loop on the thread that waits for that loop."""

import queue
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple[Future[Any], Callable[[], Any]]


class CallingThread(Executor):
    """An executor whose only thread is the one that calls `wait_for`."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        job: Future[T] = Future()
        self._jobs.put((job, lambda: fn(*args, **kwargs)))
        return job

    def wait_for(self, end: Future[T]) -> T:
        """Wait for `end` and return its result; run calls that come meanwhile. Ctrl-C in one of them cancels `end`."""
        end.add_done_callback(lambda end: self._jobs.put(None))
        while (found := self._jobs.get()) is not None:
            job, call = found
            if not job.set_running_or_notify_cancel():
                continue
            try:
                job.set_result(call())
            except Exception as error:
                job.set_exception(error)
            except BaseException:  # it would end the event loop of the other thread
                end.cancel()
                raise
        return end.result()
