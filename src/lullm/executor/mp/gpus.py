"""Which GPU each of several workers on this machine has."""

import os

import torch

from lullm.device.choice import missing_for_cuda
from lullm.errors import ConfigError, UnsupportedError


def gpu_environments(num_workers: int) -> list[dict[str, str]]:
    """Variables by rank, with which a process sees one GPU, its own. One worker takes the GPU that is current.

    Raises:
        UnsupportedError: GPUs cannot be used here. ConfigError: there are fewer than workers.
    """
    if num_workers == 1:
        return [{}]
    missing = missing_for_cuda()
    if missing is not None:
        raise UnsupportedError(f"device='cuda' cannot be used: {missing}; use device='cpu'")
    variable = "HIP_VISIBLE_DEVICES" if torch.version.hip is not None else "CUDA_VISIBLE_DEVICES"
    names = visible_names(os.environ.get(variable), torch.cuda.device_count())
    if len(names) < num_workers:
        shown = f"{variable}={','.join(names)}" if variable in os.environ else f"{len(names)} on this machine"
        raise ConfigError(
            f"tensor_parallel_size={num_workers} needs {num_workers} GPUs, and there are fewer ({shown}): take at most "
            f"{len(names)}, or let this process see more"
        )
    return [{variable: name} for name in names[:num_workers]]


def visible_names(given: str | None, count: int) -> list[str]:
    """The GPUs that this process sees, as such a variable names them. `count`: as torch counts them."""
    if given is None:
        return [str(index) for index in range(count)]
    return [name.strip() for name in given.split(",")][:count]
