"""Opens the device that a config names, or explains why it cannot; chooses a GPU for each of several workers."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import torch

from lullm.device.cpu import CpuDevice
from lullm.device.device import Device
from lullm.errors import ConfigError, UnsupportedError
from lullm.machine.memory_ahead import MemoryAhead

SEVERAL_UNTRIED = "several GPUs: no machine with several has run this yet; the tests have, on GPUs that are made up"


def open_device(name: str, ahead: MemoryAhead | None = None) -> Device:
    """The device of a resolved config: 'cpu' or 'cuda' (the current GPU, of NVIDIA or AMD).

    A CPU's first arena lies in the memory `ahead`, if it fits there.

    Raises:
        UnsupportedError: a GPU lacks something; the error names it.
    """
    if name == "cpu":
        return CpuDevice(ahead)
    _require_cuda()
    from lullm.device.cuda import CudaDevice  # loads the driver's library

    return CudaDevice(torch.cuda.current_device())


def _require_cuda() -> None:
    missing = missing_for_cuda()
    if missing is not None:
        raise UnsupportedError(f"device='cuda' cannot be used: {missing}; use device='cpu' (--device cpu)")


def missing_for_cuda() -> str | None:
    """Why device='cuda' cannot work here; None: it can."""
    if torch.version.cuda is None and torch.version.hip is None:  # a build for ROCm names its devices 'cuda', too
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return f"torch sees no GPU ({_words_of_torch()}; is the driver there, and CUDA_VISIBLE_DEVICES right?)"
    return _missing_for_triton()


def _words_of_torch() -> str:
    """Why torch sees no GPU: no driver, a driver that is too old and its version, or no device."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return " ".join(str(error).split())
    return "it does not say why"


def _missing_for_triton() -> str | None:
    """Triton compiles a piece of C on its first use of a GPU, and later finds it on disk (~/.triton/cache)."""
    if find_spec("triton") is None:
        return "the package triton is not installed (pip install triton)"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None  # then it needs no driver
    from triton.runtime import driver

    try:
        _ = driver.active.utils
    except Exception as error:  # no compiler, no headers, no driver: a RuntimeError, the compiler's exit status, ...
        words = (str(error).strip() or repr(error)).splitlines()[0]
        return (
            f"triton does not start ({words}); where it has not run before, it needs a C compiler and Python's headers "
            "(apt install gcc python3-dev, or CC=...)"
        )
    return None


def gpu_environments(count: int, num_each: int = 1, option: str = "tensor_parallel_size") -> list[dict[str, str]]:
    """For each of several processes, the variables with which it sees only its own GPUs. A single process sees all.

    Args:
        num_each: GPUs of a process.
        option: the option that asks for so many processes.

    Raises:
        UnsupportedError: GPUs cannot be used here.
        ConfigError: there are fewer.
    """
    if count == 1:
        return [{}]
    _require_cuda()
    variable = "HIP_VISIBLE_DEVICES" if torch.version.hip is not None else "CUDA_VISIBLE_DEVICES"
    names = visible_names(os.environ.get(variable), torch.cuda.device_count())
    if len(names) < count * num_each:
        shown = f"{variable}={','.join(names)}" if variable in os.environ else f"{len(names)} on this machine"
        raise ConfigError(
            f"{option}={count} needs {count * num_each} GPUs, and there are fewer ({shown}): take at most "
            f"{len(names) // num_each}, or let this process see more"
        )
    starts = range(0, count * num_each, num_each)
    return [{variable: ",".join(names[start : start + num_each])} for start in starts]


def visible_names(given: str | None, count: int) -> list[str]:
    """The GPUs that this process sees, in the form of that variable. `count`: torch's number of them."""
    if given is None:
        return [str(index) for index in range(count)]
    return [name.strip() for name in given.split(",")][:count]


def take_launched_gpu(variables: Mapping[str, str] = os.environ) -> str:
    """Make current the GPU of a process that a launcher has started. Returns an id that no other GPU has.

    A GPU that the script has made current stays so. Otherwise LOCAL_RANK is its number, unless the process sees only
    one.

    Raises:
        UnsupportedError: GPUs cannot be used here.
        ConfigError: this process does not see so many.
    """
    _require_cuda()
    count, index = torch.cuda.device_count(), torch.cuda.current_device()
    local_rank = variables.get("LOCAL_RANK", "")
    if index == 0 and count > 1 and local_rank.isdecimal():
        index = int(local_rank)
        if index >= count:
            raise ConfigError(
                f"LOCAL_RANK={index}, and this process sees {count} GPUs: start at most {count} processes on this "
                "machine, or let each see a GPU of its own (CUDA_VISIBLE_DEVICES)"
            )
        torch.cuda.set_device(index)
    return str(torch.cuda.get_device_properties(index).uuid)


def check_different(gpus: Sequence[str]) -> None:
    """Check the results of `take_launched_gpu` of a model's processes, by rank. Raises ConfigError: two are equal."""
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) != rank:
            raise ConfigError(
                f"processes {first} and {rank} of a model have the same GPU: call torch.cuda.set_device, or set "
                "LOCAL_RANK as torchrun does, or let each see a GPU of its own (CUDA_VISIBLE_DEVICES)"
            )
