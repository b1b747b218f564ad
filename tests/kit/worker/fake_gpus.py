"""Worker processes that meet a fake GPU each, and what stands for NCCL between them: gloo, in and out of recordings."""

import os

import torch
from fake_cuda.tensors import DeviceTensor, plain
from kit.device import rehearsal

OPENER = f"{__name__}:open_worker_on_fake_gpu"


def open_worker_on_fake_gpu(*arguments):
    """In the place of `open_ranked_worker`."""
    meet_fake_gpu()
    from lullm.executor.remote.opening import open_ranked_worker

    return open_ranked_worker(*arguments)


def meet_fake_gpu(index=0):
    """From now on this process has GPUs up to this one, the last of which works, and gloo for NCCL."""
    gpu = rehearsal.enter(index)
    from lullm.collective import torch_group

    torch_group._TRANSPORTS["nccl"] = lambda *given: FakeNccl(gpu, given[1], lambda: torch_group._gloo(*given))


class FakeNccl:
    """A process group for tensors of the fake GPU, whose calls are recorded with the other work.

    Like NCCL's it meets the others at its first call.
    """

    def __init__(self, gpu, place, meet):
        self._gpu, self._place, self._meet, self._gloo = gpu, place, meet, None

    def rank(self):
        return self._place.rank

    def size(self):
        return self._place.size

    def allgather(self, parts, wholes):
        [parts], [whole] = parts, wholes
        self._gloo = self._gloo or self._meet()
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
