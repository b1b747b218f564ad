"""Several workers behind one executor, in this process: fakes that write their calls down, and whole replicas."""

from lullm.executor.executor import Executor
from lullm.executor.uniproc import LocalWorkers
from lullm.types.hibernation.report import BlockFile
from lullm.types.sleep import Released, SleepForecast
from lullm.types.step import StepResult
from lullm.worker.worker import Worker


class FakeWorker:
    """Answers every verb with a figure of its rank, or raises `failures[verb]`; `calls` is shared by all ranks."""

    def __init__(self, rank, calls):
        self.rank = rank
        self.calls = calls
        self.failures = {}
        self.version = 0
        self.lacks_memory = False
        self.experts = []

    def _note(self, verb, *args):
        self.calls.append((self.rank, verb, *args))
        if verb in self.failures:
            raise self.failures[verb]

    def num_available_blocks(self):
        self._note("num_available_blocks")
        return 100 - self.rank, 10 + self.rank

    def initialize_cache(self, num_blocks, num_host_blocks, max_model_len):
        self._note("initialize_cache", num_blocks, num_host_blocks, max_model_len)

    def measure_copy_speed(self):
        self._note("measure_copy_speed")
        return 9.0 - self.rank

    def touch_blocks(self, block_ids):
        self._note("touch_blocks", block_ids)
        return self.lacks_memory

    def settle(self):
        """Its weights are in their place."""

    def launch_model(self, plan):
        self._note("launch_model", plan)
        return FakeStep(self)

    def prepare_sleep(self, command):
        self._note("prepare_sleep", command)

    def commit_sleep(self):
        self._note("commit_sleep")
        refusal = f"rank {self.rank} is locked" if self.rank else None
        return Released(("weights", "kv_cache")[: 1 + self.rank], 1000, 10 + self.rank, 2.0 - self.rank / 10, refusal)

    def cancel_sleep(self):
        self._note("cancel_sleep")

    def wake_up(self, tag, action, ahead=()):
        self._note("wake_up", tag, action, ahead)
        return 100

    def commit_wake_up(self, tag):
        self._note("commit_wake_up", tag)

    def cancel_wake_up(self, tag):
        self._note("cancel_wake_up", tag)

    def forecast_sleep(self, command):
        self._note("forecast_sleep", command)
        return SleepForecast(1, ("weights",), 7, 3, 1.0 + self.rank, 4.0 - self.rank)

    def weight_checksums(self):
        self._note("weight_checksums")
        return {"norm": self.rank}

    def write_blocks(self, folder, used):
        self._note("write_blocks", folder, used)
        return BlockFile((10 + self.rank,), (self.rank,))

    def read_blocks(self, folder, used, files):
        self._note("read_blocks", folder, used, files)
        return files[self.rank].num_bytes

    def begin_update(self):
        self._note("begin_update")
        self.applied = []

    def write_weight(self, name, tensor):
        self._note("write_weight", name, tensor)
        self.applied.append(name)

    def end_update(self):
        self._note("end_update")
        self.version += 1
        return self.applied

    def check_checkpoint(self, folder):
        self._note("check_checkpoint", folder)

    def reload_weights(self, checkpoint=None):
        self._note("reload_weights", checkpoint)
        self.version += 1

    def keep_checkpoint(self, checkpoint):
        self._note("keep_checkpoint", checkpoint)

    def has_pushed_weights(self):
        self._note("has_pushed_weights")
        return bool(self.rank)

    def reset_kv_scales(self):
        self._note("reset_kv_scales")

    def layer_experts(self):
        self._note("layer_experts")
        return self.experts

    def clear_expert_load(self):
        self._note("clear_expert_load")

    def swap_experts(self, swaps):
        self._note("swap_experts", swaps)

    def read_adapter(self, number, path):
        self._note("read_adapter", number, path)
        return 100

    def drop_adapter(self, number):
        self._note("drop_adapter", number)

    def weights_version(self):
        return self.version

    def shutdown(self):
        self.calls.append((self.rank, "shutdown"))


class FakeStep:
    """A step of one worker; its swap seconds are the rank."""

    def __init__(self, worker):
        self.worker = worker

    def result(self):
        self.worker._note("result")
        return StepResult([], swap_s=float(self.worker.rank))


class FakeExecutor(Executor):
    """`num_workers` fakes. `calls`: (rank, verb, arguments), in order."""

    def __init__(self, num_workers):
        self.calls = []
        self.workers = [FakeWorker(rank, self.calls) for rank in range(num_workers)]
        super().__init__(LocalWorkers(self.workers))

    def take_calls(self):
        """[(rank, verb)] since the last time."""
        calls = [call[:2] for call in self.calls]
        self.calls.clear()
        return calls


class ReplicaExecutor(Executor):
    """Real workers that all hold the whole model and run every step."""

    def __init__(self, num_workers, config, model_config, folder, ahead=None):
        self.workers = [Worker(config, model_config, folder) for _ in range(num_workers)]
        self.driver_worker = self.workers[0]
        super().__init__(LocalWorkers(self.workers))
