"""The workers of an engine in threads of this process: what parallelism computes, without processes.

Every worker lives in a thread of its own, as recordings and torch's modes do. Their groups are `ThreadCollective`s.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch

from lullm.collective.collective import Alone, rows_of
from lullm.collective.seat import Seat
from lullm.errors import EngineDeadError, WorkerLostError
from lullm.executor.executor import Executor
from lullm.executor.workers import Answer, run_on
from lullm.types.parallel.placement import placements
from lullm.worker.meeting import Meeting, open_seat
from lullm.worker.worker import Worker

TIMEOUT_S = 60.0
"""A member that waits longer has lost the others. Generous: a measurement elsewhere may stop all of them."""


@dataclass
class Exchange:
    """What the threads of a group share: a barrier, a place for each member's tensor, and letters between two."""

    size: int
    tensors: list = field(init=False)
    letters: dict = field(default_factory=dict)

    def __post_init__(self):
        self.tensors = [None] * self.size
        self.barrier = threading.Barrier(self.size)
        self.changed = threading.Condition()
        self.is_over = False

    def swap(self, rank, x):
        """The tensors of all members, which may not write to them before `part`."""
        self.tensors[rank] = x
        self.part()
        return list(self.tensors)

    def part(self):
        try:
            self.barrier.wait(TIMEOUT_S)
        except threading.BrokenBarrierError:
            raise WorkerLostError("another thread of the group has gone") from None

    def end(self):
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
        self.barrier.abort()


class ThreadCollective:
    """Implements `Collective` among threads. `calls`: what this member has done, by name and shape."""

    def __init__(self, exchange, rank):
        self._exchange = exchange
        self.rank = rank
        self.size = exchange.size
        self.calls = []

    def all_reduce_(self, x):
        self.calls.append(("all_reduce_", tuple(x.shape)))
        total = torch.zeros(x.shape, dtype=torch.float32)
        for part in self._exchange.swap(self.rank, x):
            total += part.float()
        self._exchange.part()
        x.copy_(total)

    def all_gather(self, x):
        self.calls.append(("all_gather", tuple(x.shape)))
        parts = self._exchange.swap(self.rank, x)
        assert len({(part.shape, part.dtype) for part in parts}) == 1, "all give the same shape"
        gathered = torch.cat(parts, dim=-1)
        self._exchange.part()
        return gathered

    def deal_rows(self, x):
        self.calls.append(("deal_rows", tuple(x.shape)))
        own = rows_of(len(x), self.rank, self.size)
        dealt = torch.cat([part[own.start : own.stop] for part in self._exchange.swap(self.rank, x)], dim=-1)
        self._exchange.part()
        return dealt

    def send(self, x, to):
        self.calls.append(("send", tuple(x.shape)))
        exchange = self._exchange
        with exchange.changed:
            exchange.letters.setdefault((self.rank, to), []).append(x.clone())
            exchange.changed.notify_all()

    def receive_(self, x, source):
        self.calls.append(("receive_", tuple(x.shape)))
        exchange, key = self._exchange, (source, self.rank)
        with exchange.changed:
            has_come = exchange.changed.wait_for(lambda: exchange.letters.get(key) or exchange.is_over, TIMEOUT_S)
            if not has_come or not exchange.letters.get(key):
                raise WorkerLostError("another thread of the group has gone")
            sent = exchange.letters[key].pop(0)
        assert (sent.shape, sent.dtype) == (x.shape, x.dtype), "received as it was sent"
        x.copy_(sent)

    def close(self):
        self._exchange.end()


def thread_group(size):
    """The members' ends of a group, by rank."""
    if size == 1:
        return [Alone()]
    exchange = Exchange(size)
    return [ThreadCollective(exchange, rank) for rank in range(size)]


def thread_seats(tensor_size, pipeline_size=1):
    """Of all workers, by rank."""
    stages = [thread_group(tensor_size) for _ in range(pipeline_size)]
    lines = [thread_group(pipeline_size) for _ in range(tensor_size)]
    return [
        Seat(place, stages[place.pipeline.rank][place.tensor.rank], lines[place.tensor.rank][place.pipeline.rank])
        for place in placements(tensor_size, pipeline_size)
    ]


@dataclass
class Promised:
    """A step in a worker's thread."""

    future: object

    def result(self):
        return self.future.result()


class ThreadWorkers:
    """Implements `Workers`: a thread for each, in which `make(seat)` builds its worker."""

    def __init__(self, seats, make):
        self._threads = [ThreadPoolExecutor(1, f"worker-{seat.placement.rank}") for seat in seats]
        self._is_closed = False
        futures = [thread.submit(make, seat) for thread, seat in zip(self._threads, seats, strict=True)]
        failed = [future.exception() for future in futures]
        if any(failed):
            self._stop()
            raise next(error for error in failed if error is not None)
        self.workers = [future.result() for future in futures]

    @property
    def num_workers(self):
        return len(self.workers)

    def call(self, verb, *args):
        return self._ask([getattr(worker, verb) for worker in self.workers], *args)

    def launch(self, plan):
        def compute(worker):
            return worker.launch_model(plan).result()

        return [
            Promised(thread.submit(compute, worker)) for thread, worker in zip(self._threads, self.workers, strict=True)
        ]

    def run(self, call):
        return self._ask([partial(run_on, worker) for worker in self.workers], call)

    def weights_versions(self):
        return [worker.weights_version() for worker in self.workers]

    def check_health(self):
        if self._is_closed:
            raise EngineDeadError("the engine has been shut down")

    def observe_loss(self, observer):
        pass

    def close(self):
        if not self._is_closed:
            self._is_closed = True
            self._ask([worker.shutdown for worker in self.workers])
            self._stop()

    def _ask(self, functions, *args):
        pairs = zip(self._threads, functions, strict=True)
        futures = [thread.submit(function, *args) for thread, function in pairs]
        return [Answer(error=error) if (error := f.exception()) else Answer(f.result()) for f in futures]

    def _stop(self):
        for thread in self._threads:
            thread.shutdown()


class ThreadExecutor(Executor):
    """Workers in threads, as many as the config says. `driver_worker`: the first of them."""

    def __init__(self, config, model_config, folder, ahead=None):
        seats = thread_seats(config.tensor_parallel_size, config.pipeline_parallel_size)
        workers = ThreadWorkers(seats, lambda seat: Worker(config, model_config, folder, seat=seat))
        self.workers = workers.workers
        self.driver_worker = self.workers[0]
        super().__init__(workers)


class MeetingExecutor(ThreadExecutor):
    """The same over groups as processes have them."""

    transport = "memory"

    def __init__(self, config, model_config, folder, ahead=None):
        grid = placements(config.tensor_parallel_size, config.pipeline_parallel_size)
        with Meeting.on_this_host(transport=self.transport, timeout=TIMEOUT_S) as meeting:

            def make(seat):
                return Worker(config, model_config, folder, seat=open_seat(seat.placement, meeting.rendezvous))

            workers = ThreadWorkers([Seat(place) for place in grid], make)
        self.workers = workers.workers
        self.driver_worker = self.workers[0]
        Executor.__init__(self, workers)


def use_threads(monkeypatch, executor=ThreadExecutor):
    """Engines that are built from now on have as many workers as their config says, in threads."""
    monkeypatch.setattr("lullm.engine.llm_engine.open_executor", executor)
    monkeypatch.setattr("lullm.config.agreement.options.refuse_missing_machinery", lambda config: None)
