"""Worker processes that meet a fake GPU each, and what stands for NCCL between them: gloo, in and out of recordings."""

import os

import torch
from fake_cuda.tensors import DeviceTensor, plain
from kit.device import rehearsal

OPENER = f"{__name__}:open_worker_on_fake_gpu"


def open_worker_on_fake_gpu(*arguments):
    """In the place of `open_ranked_worker`."""
    gpu = rehearsal.enter()
    from lullm.collective import torch_group
    from lullm.executor.remote.opening import open_ranked_worker

    torch_group._TRANSPORTS["nccl"] = lambda *given: FakeNccl(gpu, torch_group._gloo(*given))
    return open_ranked_worker(*arguments)


class FakeNccl:
    """A process group for tensors of the fake GPU, whose calls are recorded with the other work."""

    def __init__(self, gpu, gloo):
        self._gpu, self._gloo = gpu, gloo
        self.rank, self.size = gloo.rank, gloo.size

    def allgather(self, parts, wholes):
        [parts], [whole] = parts, wholes
        if not all(isinstance(each, DeviceTensor) for each in (whole, *parts)):
            raise RuntimeError("No backend type associated with device type cpu")

        def run(parts, whole):
            with torch._C.DisableTorchFunctionSubclass():
                self._gloo.allgather([list(parts)], [whole]).wait()

        arguments = [plain(each) for each in parts], plain(whole)
        run(*arguments)
        self._gpu.calls._touch([whole], parts)
        self._gpu.calls._record(run, arguments, {}, [], [whole], parts)
        return _Done()


class _Done:
    """The stream waits, not the host."""

    def wait(self):
        pass


def gpu_facts(worker):
    """What a test asks each worker: replays, faults, the device, and a variable of its own."""
    from fake_cuda.tensors import Present

    gpu = Present.gpu
    return [gpu.num_replays, list(gpu.faults), str(worker.setup.device.torch_device), os.environ.get("A_GPU")]
