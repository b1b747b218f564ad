"""Where Triton's kernels run: the current GPU, or the CPU if they are interpreted."""

from functools import cache

import torch
import triton

from lullm.errors import UnsupportedError

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Set at triton's import, by TRITON_INTERPRET."""


def launch_device() -> torch.device:
    """The device of the kernels' tensors. Raises UnsupportedError: there is none."""
    if IS_INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UnsupportedError("Triton's kernels need a GPU that torch can use; use device='cpu'")
    return torch.device("cuda", torch.cuda.current_device())


def num_multiprocessors() -> int:
    """Multiprocessors of the launch device; 4 if kernels are interpreted, so that tests have several splits."""
    if IS_INTERPRETED:
        return 4
    return _num_multiprocessors(torch.cuda.current_device())


@cache  # asked at every launch; torch takes 3 to 8 us for it
def _num_multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


@cache
def converts_float8() -> bool:
    """Whether the launch device has instructions for e4m3; the compiler has no substitute."""
    return IS_INTERPRETED or torch.cuda.get_device_capability(launch_device()) >= (8, 9)
