"""Worker processes around a worker that computes nothing: verbs, steps, errors, and what may befall a process."""

import gc
import logging
import os
import signal
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from kit.ready_process import ReadyPopen
from kit.running import running
from kit.worker.remote import DIES, FAILS, FAKE, HANGS, STOPS, TAKES_LONG, rank_of

from lullm.errors import (
    CacheSizeError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    UnsupportedError,
    WorkerLostError,
)
from lullm.executor.executor import Executor
from lullm.executor.mp.transport import RingTransport
from lullm.executor.remote.worker_spec import WorkerSpec
from lullm.executor.remote.workers import RemoteWorkers
from lullm.types.sleep import SleepCommand, UsedBlocks
from lullm.types.step import StepPlan
from lullm.types.wire.remote_call import RemoteCall

BEAT_S = 0.1


@pytest.fixture(scope="module", autouse=True)
def ready():
    """What forks the workers has been started before a test counts its own open files."""
    open_workers().close()


def open_workers(ways=("well", "well"), worker_timeout=30.0, step_timeout=30.0, result_rank=0):
    specs = [
        WorkerSpec(rank, FAKE, [rank, way], rank == result_rank, min(BEAT_S, worker_timeout / 10), logging.INFO)
        for rank, way in enumerate(ways)
    ]
    return RemoteWorkers(RingTransport(specs, worker_timeout), specs, step_timeout)


@pytest.fixture(scope="module")
def workers():
    """Two, for tests that leave them as they were."""
    workers = open_workers(result_rank=1)
    yield workers
    workers.close()


def pids_of(workers):
    return [answer.value for answer in workers.run(RemoteCall("pid"))]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second: it was reaped between opening and reading
        return False


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def open_files():
    gc.collect()
    return sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _exists(fd))


def _exists(fd):
    return os.path.lexists(f"/proc/self/fd/{fd}")


def test_each_is_a_process_of_its_own(workers):
    pids = pids_of(workers)
    assert len({*pids, os.getpid()}) == 3
    executor = Executor(workers)
    assert executor.num_workers == 2 and executor.determine_num_available_blocks() == (99, 0)


def test_what_is_given_and_what_comes_back(workers):
    given = ("text", (1, [2.5, None]), {"a": b"b"}, torch.arange(6.0).view(2, 3))
    for rank, answer in enumerate(workers.run(RemoteCall("echo", 60, given, {"key": {1, 2}}))):
        found_rank, args, kwargs = answer.value
        assert found_rank == rank and kwargs == {"key": {1, 2}}
        assert args[:3] == given[:3] and torch.equal(args[3], given[3])


def test_a_tensor_far_larger_than_the_ring(workers):
    large = torch.arange(5_000_000, dtype=torch.float32)  # 20 MB
    for answer in workers.run(RemoteCall("echo", 60, (large,))):
        assert torch.equal(answer.value[1][0], large)


def test_errors_are_those_of_each_worker(workers):
    command = SleepCommand(1, (("weights", "offload"),), UsedBlocks([4], []))
    first, second = workers.call("prepare_sleep", command)
    assert isinstance(first.error, CacheSizeError)
    assert str(second.error) == "rank 1: 1 (('weights', 'offload'),) [4]"
    for answer in workers.run(RemoteCall("disk_is_full")):
        assert isinstance(answer.error, OSError) and answer.error.errno == 28
    assert all(answer.error is None for answer in workers.call("num_available_blocks"))


def test_versions_come_with_the_answers(workers):
    before = list(workers.weights_versions())
    workers.call("reload_weights")
    assert workers.weights_versions() == [version + 1 for version in before]


def test_functions_go_by_their_names(workers):
    answers = workers.run(RemoteCall(rank_of, None, (5,), {"key": 1}))
    assert [answer.value for answer in answers] == [[0, 5, {"key": 1}], [1, 5, {"key": 1}]]
    for function in (lambda worker: 1, _local()):
        with pytest.raises(UnsupportedError, match="sends no code to other processes"):
            workers.run(RemoteCall(function))


def _local():
    def inner(worker):
        return 1

    return inner


def test_names_that_workers_do_not_have(workers):
    for name in ("nothing", "_private"):
        assert all("workers have no method" in str(a.error) for a in workers.run(RemoteCall(name)))


def test_what_is_no_plain_data_is_refused_on_either_side(workers):
    with pytest.raises(InvalidRequestError, match="is no plain data; give plain data or tensors"):
        workers.run(RemoteCall("echo", None, (object(),)))
    for answer in workers.run(RemoteCall("live")):
        assert "cannot go to another process" in str(answer.error)


def test_a_call_that_takes_too_long_is_left_to_itself(workers):
    with pytest.raises(TimeoutError, match="within 0.05 s; the call goes on there"):
        workers.run(RemoteCall("wait", 0.05, (0.3,)))
    assert list(workers._abandoned.values()) == [{0, 1}]
    assert [answer.value for answer in workers.run(RemoteCall("wait", 20, (0.0,)))] == [0, 1], (
        "not those of the first call"
    )
    assert not workers._abandoned, "a number for each call that was too late added up"


def test_steps_in_flight_come_in_order_from_one_worker(workers):
    steps = [workers.launch(StepPlan([]))[0] for _ in range(3)]
    results = [step.result() for step in steps]
    assert {result.tokens[0].token_id for result in results} == {1}, "of the rank whose results count"
    counts = [result.tokens[0].seq_id for result in results]
    assert counts == list(range(counts[0], counts[0] + 3))


def test_their_log_lines_have_their_rank(caplog):
    with caplog.at_level(logging.INFO, "lullm"):
        open_workers().close()
    lines = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    for rank in (0, 1):
        assert ("lullm.worker.fake", "WARNING", f"[rank {rank}] opening well") in lines


def test_a_start_that_fails_is_that_ranks_error_and_stops_the_others():
    files = open_files()
    with pytest.raises(ModelLoadError, match="^rank 1 cannot read its share$"):
        open_workers(("never", "badly"))
    with pytest.raises(WorkerLostError, match=r"worker 0 \(process \d+\) has ended with code 7"):
        open_workers(("dead", "never"))
    assert open_files() == files


def test_an_end_leaves_nothing():
    files, threads = open_files(), threading.active_count()
    workers = open_workers()
    pids = pids_of(workers)
    workers.close()
    workers.close()
    assert not any(map(is_running, pids)) and open_files() == files and threading.active_count() == threads
    with pytest.raises(EngineDeadError, match="shut down"):
        workers.check_health()


def test_an_engine_that_nobody_closes_takes_its_workers_with_it():
    files = open_files()
    workers = open_workers()
    pids = pids_of(workers)
    del workers
    gc.collect()
    wait_for(lambda: not any(map(is_running, pids)))
    wait_for(lambda: open_files() == files)


def test_a_fork_of_the_engines_process_leaves_its_workers_alone():
    """Its copy of the engine shares the bells: one that rang them kept the watching thread of the engine at work."""
    workers = open_workers()
    pids = pids_of(workers)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                workers.run(RemoteCall("pid"))
            except UnsupportedError as error:
                code = 0 if "of which this is a fork" in str(error) else 2
            workers.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1, "the engine's process is idle"
    assert pids_of(workers) == pids
    workers.close()


def fatal(way, rank, **options):
    """The error of a step in which the worker `rank` behaves so, after which none is left."""
    files = open_files()
    workers = open_workers(**options)
    lost = threading.Event()
    workers.observe_loss(lost.set)
    pids = pids_of(workers)
    # The other one waits for it, as in a sum of both.
    step = workers.launch(StepPlan([], blocks_to_copy=[(rank, way), (1 - rank, TAKES_LONG)]))[0]
    started = time.monotonic()
    with pytest.raises(Exception) as caught:  # noqa: B017, PT011  # which one, the caller says
        step.result()
    seconds = time.monotonic() - started
    if isinstance(caught.value, WorkerLostError):
        assert lost.wait(20)
        with pytest.raises(WorkerLostError, match=f"worker {rank} "):
            workers.check_health()
        wait_for(lambda: not any(map(is_running, pids)))
    workers.close()
    assert not any(map(is_running, pids)) and open_files() == files
    return caught.value, seconds


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_in_mid_step(rank):
    error, _ = fatal(DIES, rank)
    assert isinstance(error, WorkerLostError)
    assert f"worker {rank} (process " in str(error) and "was killed by SIGKILL" in str(error)


@pytest.mark.parametrize("rank", [0, 1])
def test_out_of_memory_in_mid_step(rank):
    error, _ = fatal(FAILS, rank)
    assert isinstance(error, MemoryError) and f"in worker {rank}:" in error.__notes__[0]


def test_stopped_in_mid_step():
    """It gives no sign of life; the kernel says nothing of its end."""
    error, seconds = fatal(STOPS, 0, worker_timeout=1.0)
    assert isinstance(error, WorkerLostError) and "no sign of life for 1 s (worker_timeout)" in str(error)
    assert 0.2 < seconds < 15


def test_hung_in_mid_step():
    """Its heart beats on, so that only the step's own time is over."""
    error, _ = fatal(HANGS, 0, step_timeout=0.5)
    assert isinstance(error, WorkerLostError) and "has not finished a step within step_timeout=0.5 s" in str(error)


def test_a_step_that_fails_behind_its_result_is_told_with_the_next():
    workers = open_workers()
    workers.launch(StepPlan([], blocks_to_copy=[(1, TAKES_LONG), (1, FAILS)]))[0].result()
    with pytest.raises(MemoryError):
        for _ in range(100):
            workers.launch(StepPlan([], blocks_to_copy=[(0, TAKES_LONG)]))[0].result()
    workers.close()


def test_an_idle_worker_that_is_killed_is_noticed_at_once():
    workers = open_workers()
    lost = threading.Event()
    workers.observe_loss(lost.set)
    os.kill(pids_of(workers)[1], signal.SIGTERM)
    assert lost.wait(20)
    with pytest.raises(WorkerLostError, match="worker 1 .* was killed by SIGTERM$"):
        workers.call("num_available_blocks")
    late = threading.Event()
    workers.observe_loss(late.set)
    assert late.is_set(), "who comes late hears of it at once"
    workers.close()


DRIVER = textwrap.dedent(
    """
    import os, signal, sys, time
    sys.path.insert(0, {tests!r})
    from executor.mp.test_processes import open_workers, pids_of
    workers = open_workers()
    print(*pids_of(workers), flush=True)
    if {stops}:
        os.kill(pids_of(workers)[0], signal.SIGSTOP)
    if {exits}:
        sys.exit(3)
    time.sleep(600)
    """
)


@pytest.mark.parametrize(("stops", "exits"), [(False, False), (True, False), (False, True)])
def test_the_end_of_the_engines_process_is_theirs(stops, exits):
    """Killed, killed while one of them is stopped, or just at the end of its script."""
    tests = str(Path(__file__).parents[2])
    code = DRIVER.format(tests=tests, stops=stops, exits=exits)
    with running([sys.executable, "-c", code], ReadyPopen) as driver:
        pids = list(map(int, driver.stdout.readline().split()))
        assert len(pids) == 2
        if exits:
            assert driver.wait(30) == 3
        else:
            wait_for(lambda: not stops or "T" in Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2])
            driver.kill()
        wait_for(lambda: not any(map(is_running, pids)))


def test_idle_workers_take_no_time(workers):
    """Neither side looks around while nothing is asked for."""
    pids = pids_of(workers)
    before = [_cpu_ticks(pid) for pid in pids]
    time.sleep(0.5)
    assert all(_cpu_ticks(pid) - ticks <= 2 for pid, ticks in zip(pids, before, strict=True))


def _cpu_ticks(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.slow
def test_a_hundred_starts_and_ends_leave_nothing():
    files, threads = open_files(), threading.active_count()
    for _ in range(100):
        workers = open_workers()
        pids = pids_of(workers)
        workers.close()
        assert not any(map(is_running, pids))
    assert open_files() == files and threading.active_count() == threads
