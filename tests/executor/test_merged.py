"""Every verb over 1, 2 and 4 fake workers: who is called, in which order, and what one answer they make."""

from pathlib import Path

import pytest
import torch
from kit.worker.fakes import FakeExecutor

from lullm.errors import EngineDeadError, InvalidRequestError, ModelLoadError, SleepError, UnsupportedError, WakeUpError
from lullm.types.sleep import SleepCommand, UsedBlocks
from lullm.types.step import StepPlan

ONES = torch.ones(2)
ORDER = SleepCommand(1, (("weights", "offload"),), UsedBlocks([], []))


@pytest.fixture(params=[1, 2, 4])
def executor(request):
    return FakeExecutor(request.param)


def all_of(executor, *verbs):
    """The verbs one after the other, each on every rank."""
    return [(rank, verb) for verb in verbs for rank in range(len(executor.workers))]


def test_start(executor):
    n = len(executor.workers)
    assert executor.determine_num_available_blocks() == (100 - (n - 1), 10)
    executor.initialize_cache(7, 3, 64)
    assert executor.measure_copy_speed() == 9.0 - (n - 1)
    assert executor.take_calls() == all_of(executor, "num_available_blocks", "initialize_cache", "measure_copy_speed")


def test_every_worker_touches_until_none_lacks_memory(executor):
    for worker in executor.workers:
        worker.lacks_memory = worker.rank > 0
    assert executor.touch_blocks([3, 4]) is (len(executor.workers) > 1)
    assert executor.take_calls() == all_of(executor, "touch_blocks")
    executor.workers[-1].lacks_memory = False
    assert executor.touch_blocks([3, 4]) is (len(executor.workers) > 2)


def test_no_room_on_one_worker(executor):
    executor.workers[-1].failures["num_available_blocks"] = MemoryError("no block fits")
    with pytest.raises(MemoryError, match="no block fits"):
        executor.determine_num_available_blocks()


def test_a_step_runs_everywhere_and_the_last_has_its_result(executor):
    running = executor.launch_model(StepPlan([]))
    assert executor.take_calls() == all_of(executor, "launch_model")
    assert running.result().swap_s == len(executor.workers) - 1
    assert executor.take_calls() == all_of(executor, "result")


def test_a_step_that_fails_on_one_worker_fails_after_all_are_done(executor):
    executor.workers[0].failures["result"] = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        executor.launch_model(StepPlan([])).result()
    assert executor.take_calls() == all_of(executor, "launch_model", "result")


def test_sleep(executor):
    n = len(executor.workers)
    executor.prepare_sleep(ORDER)
    assert executor.take_calls() == all_of(executor, "prepare_sleep"), "nothing is released yet"
    released = executor.commit_sleep()
    assert executor.take_calls() == all_of(executor, "commit_sleep")
    assert (released.freed_bytes, released.backed_up_bytes) == (1000 * n, sum(10 + rank for rank in range(n)))
    assert released.seconds == 2.0 and released.refusal == (None if n == 1 else "rank 1 is locked")
    forecast = executor.forecast_sleep(ORDER)
    assert (forecast.frees_bytes, forecast.sleep_seconds, forecast.wake_seconds) == (7 * n, float(n), 4.0)


def test_every_worker_writes_and_reads_its_blocks(executor):
    ranks, folder, used = range(len(executor.workers)), Path("h"), UsedBlocks([1], [])
    assert executor.weight_checksums() == [{"norm": rank} for rank in ranks]
    files = executor.write_blocks(folder, used)
    assert [file.num_bytes for file in files] == [10 + rank for rank in ranks]
    assert executor.read_blocks(folder, used, files) == sum(10 + rank for rank in ranks)
    assert executor.take_calls() == all_of(executor, "weight_checksums", "write_blocks", "read_blocks")


@pytest.mark.parametrize("error", [SleepError("No space left on device"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_a_save_that_fails_cancels_all_the_others(executor, error):
    executor.workers[-1].failures["prepare_sleep"] = error
    with pytest.raises(type(error)):
        executor.prepare_sleep(ORDER)
    assert executor.take_calls() == all_of(executor, "prepare_sleep", "cancel_sleep")


def test_wake_up(executor):
    assert executor.wake_up("weights", "restore") == 100 * len(executor.workers)
    assert executor.take_calls() == all_of(executor, "wake_up"), "the backups stay until all tags are there"
    executor.commit_wake_up("weights")
    executor.cancel_wake_up("weights")
    assert executor.take_calls() == all_of(executor, "commit_wake_up", "cancel_wake_up")


def test_a_wake_up_that_fails_puts_all_to_sleep_again(executor):
    executor.workers[0].failures["wake_up"] = WakeUpError("damaged")
    with pytest.raises(WakeUpError, match="damaged"):
        executor.wake_up("kv_cache", "restore")
    assert executor.take_calls() == all_of(executor, "wake_up", "cancel_wake_up")


def test_weights_go_one_by_one(executor):
    def weights():
        for name in "abc":
            executor.calls.append(("generator", name))
            yield name, ONES

    assert executor.update_weights(weights()) == 3
    ranks = range(len(executor.workers))
    expected = [(rank, "begin_update") for rank in ranks]
    for name in "abc":
        expected += [("generator", name), *((rank, "write_weight", name, ONES) for rank in ranks)]
    assert executor.calls == expected + [(rank, "end_update") for rank in ranks]


def test_an_update_that_fails_is_ended_everywhere(executor):
    executor.workers[-1].failures["write_weight"] = ModelLoadError("unexpected tensor")
    with pytest.raises(ModelLoadError, match="unexpected"):
        executor.update_weights([("a", ONES), ("b", ONES)])
    assert executor.take_calls() == all_of(executor, "begin_update", "write_weight", "end_update")


def test_callers_whose_tensors_fail_learn_what_was_replaced(executor):
    def weights():
        yield "a", ONES
        raise RuntimeError("the trainer's own")

    with pytest.raises(RuntimeError, match="own") as caught:
        executor.update_weights(weights())
    assert caught.value.__notes__ == ["1 tensors before it were replaced and stay so: a"]


def test_workers_that_replaced_different_weights_are_found():
    executor = FakeExecutor(2)
    executor.workers[1].write_weight = lambda name, tensor: None
    with pytest.raises(Exception, match="disagree about the weights"):
        executor.update_weights([("a", ONES)])


def test_the_version_changes_with_any_worker_and_costs_no_call(executor):
    before = executor.weights_version
    executor.workers[-1].version += 1
    assert executor.weights_version == before + 1
    assert executor.take_calls() == []
    executor.reload_weights()
    executor.reset_kv_scales()
    assert executor.has_pushed_weights() == (len(executor.workers) > 1)
    assert executor.take_calls() == all_of(executor, "reload_weights", "reset_kv_scales", "has_pushed_weights")


def test_another_checkpoint_is_kept_once_all_have_read_it(executor):
    executor.check_checkpoint(Path("c"))
    executor.reload_weights(Path("c"))
    assert executor.take_calls() == all_of(executor, "check_checkpoint", "reload_weights", "keep_checkpoint")
    executor.workers[-1].failures["reload_weights"] = ModelLoadError("the disk is gone")
    with pytest.raises(ModelLoadError, match="gone"):
        executor.reload_weights(Path("d"))
    assert executor.take_calls() == all_of(executor, "reload_weights")


def test_collective_rpc(executor):
    ranks = list(range(executor.num_workers))
    assert len(ranks) == len(executor.workers)
    assert executor.collective_rpc(lambda worker, a, b: worker.rank + a + b, args=(1,), kwargs={"b": -1}) == ranks
    assert executor.collective_rpc("weights_version") == [0 for _ in ranks]
    for name in ("no_such_method", "_note"):
        with pytest.raises(InvalidRequestError, match=name):
            executor.collective_rpc(name)
    with pytest.raises(UnsupportedError, match="timeout"):
        executor.collective_rpc("weights_version", timeout=1.0)


def test_shutdown(executor):
    executor.check_health()
    executor.shutdown()
    assert executor.take_calls() == all_of(executor, "shutdown")
    with pytest.raises(EngineDeadError, match="shut down"):
        executor.check_health()
    with pytest.raises(EngineDeadError, match="shut down"):
        executor.launch_model(StepPlan([]))
