"""Opens the device that a config names, or reports what is missing for it."""

from importlib.util import find_spec

import torch

from lullm.device.cpu import CpuDevice
from lullm.device.device import Device
from lullm.errors import UnsupportedError
from lullm.machine.memory_ahead import MemoryAhead


def open_device(name: str, ahead: MemoryAhead | None = None) -> Device:
    """The device of a resolved config: 'cpu' or 'cuda' (the GPU that is current, of NVIDIA or AMD).

    A CPU's first arena lies in the memory `ahead`, if it fits there.

    Raises:
        UnsupportedError: something that a GPU needs is missing; the message names it.
    """
    if name == "cpu":
        return CpuDevice(ahead)
    missing = missing_for_cuda()
    if missing is not None:
        raise UnsupportedError(f"device={name!r} cannot be used: {missing}; use device='cpu'")
    from lullm.device.cuda import CudaDevice  # loads the driver's library

    return CudaDevice(torch.cuda.current_device())


def missing_for_cuda() -> str | None:
    """The reason why device='cuda' cannot work here; None: it can."""
    if torch.version.cuda is None and torch.version.hip is None:  # a build for ROCm names its devices 'cuda', too
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU (is the driver there, and CUDA_VISIBLE_DEVICES right?)"
    if find_spec("triton") is None:
        return "the package triton is not installed (pip install triton)"
    return None
