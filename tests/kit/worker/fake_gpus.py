"""Worker processes that meet a fake GPU each, and what stands for NCCL between them: gloo, in and out of recordings."""

import contextlib
import os
import signal
import threading

import torch
from fake_cuda.tensors import DeviceTensor, plain
from kit.device import rehearsal

OPENER = f"{__name__}:open_worker_on_fake_gpu"
FATES = []
"""What happens to this process as its GPU next works with another one: 'dies' or 'hangs'."""


def open_worker_on_fake_gpu(*arguments):
    """In the place of `open_ranked_worker`."""
    meet_fake_gpu()
    from lullm.executor.remote.opening import open_ranked_worker

    return open_ranked_worker(*arguments)


def open_on_fake_node(*arguments):
    """In the place of `open_on_node`, in an actor of Ray's."""
    meet_fake_gpu()
    from lullm.executor.ray.executor import open_on_node

    return open_on_node(*arguments)


def meet_fake_gpu(index=0):
    """From now on this process has GPUs up to this one, the last of which works, and gloo for NCCL."""
    gpu = rehearsal.enter(index)
    from lullm.collective import torch_group

    torch_group._TRANSPORTS["nccl"] = lambda *given: FakeNccl(gpu, given[1], lambda: torch_group._gloo(*given))


class FakeNccl:
    """A process group for tensors of the fake GPU, whose calls are recorded with the other work.

    Like NCCL's it meets the others at its first call, and waits for ever for one that has died, until `abort`.
    """

    def __init__(self, gpu, place, meet):
        self._gpu, self._place, self._meet, self._gloo = gpu, place, meet, None
        self._is_aborted = threading.Event()

    def rank(self):
        return self._place.rank

    def size(self):
        return self._place.size

    def allgather(self, parts, wholes):
        [parts], [whole] = parts, wholes
        return self._run(lambda gloo, whole, *parts: gloo.allgather([list(parts)], [whole]), [whole], parts)

    def send(self, wholes, to, tag):
        return self._run(lambda gloo, whole: gloo.send([whole], to, tag), wholes, [])

    def recv(self, wholes, source, tag):
        return self._run(lambda gloo, whole: gloo.recv([whole], source, tag), [], wholes)

    def _run(self, start, read, written):
        """`start(gloo, *read, *written)`, now and in every replay."""
        self._gloo = self._gloo or self._meet()
        if not all(isinstance(each, DeviceTensor) for each in (*read, *written)):
            raise RuntimeError("No backend type associated with device type cpu")

        def run(*tensors):
            if FATES == ["dies"]:
                os.kill(os.getpid(), signal.SIGKILL)
            if FATES == ["hangs"]:
                self._is_aborted.wait()
            if self._is_aborted.is_set():
                raise RuntimeError("NCCL communicator was aborted")
            with torch._C.DisableTorchFunctionSubclass():
                self._wait_for_ever(start(self._gloo, *tensors))

        arguments = [plain(each) for each in (*read, *written)]
        run(*arguments)
        self._gpu.calls._touch(read, written)
        self._gpu.calls._record(run, arguments, {}, [], read, written)
        return _Done()

    def _wait_for_ever(self, work):
        is_done = threading.Event()

        def wait():
            with contextlib.suppress(RuntimeError):  # the other one has died
                work.wait()
                is_done.set()

        threading.Thread(target=wait, daemon=True).start()
        while not (is_done.wait(0.05) or self._is_aborted.is_set()):
            pass

    def abort(self):
        self._is_aborted.set()


class _Done:
    """The stream waits, not the host."""

    def wait(self):
        pass


def doom(worker, rank, fate):
    """Let this happen to a worker within its next step."""
    if worker.setup.seat.placement.rank == rank:
        FATES.append(fate)


def visible_gpus(worker):
    """Those that Ray lets a worker see."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def gpu_facts(worker):
    """What a test asks each worker: replays, faults, the device, and a variable of its own."""
    from fake_cuda.tensors import Present

    gpu = Present.gpu
    return [gpu.num_replays, list(gpu.faults), str(worker.setup.device.torch_device), os.environ.get("A_GPU")]
