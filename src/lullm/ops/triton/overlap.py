"""Programmatic dependent launch: a kernel is launched while the one before it in the stream still runs.

A decode step is a chain of some 250 kernels of a few microseconds. With this, the programs of the next kernel are on
the device already when the last program of one ends. They must wait until then. The rule for every kernel that is
launched so: all of its programs call `wait_for_inputs` before they read what a kernel may have written, before they
write, and before they end. Then the end of a kernel means the end of all before it, also of those that it does not
read (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization). Only
weights may be read earlier: no kernel of a step writes them, and a step begins with a copy, which nothing overtakes.

Needs compute capability 9.0. `LULLM_GPU_OVERLAP=0` switches it off, to compare.
"""

import functools
import os

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lullm.ops.triton.device import IS_INTERPRETED

VARIABLE = "LULLM_GPU_OVERLAP"
_LEAST_CAPABILITY = (9, 0)


@triton.jit
def wait_for_inputs(OVERLAPS: tl.constexpr):
    """Wait until all kernels before this one have ended, then let the next one be launched."""
    if OVERLAPS:
        gdc_wait()
        gdc_launch_dependents()


def overlap_options() -> dict[str, bool]:
    """Constants of a launch whose kernel calls `wait_for_inputs`."""
    if IS_INTERPRETED:
        return _OFF
    return _options(torch.cuda.current_device())


_OFF = {"OVERLAPS": False}


@functools.cache
def _options(index: int) -> dict[str, bool]:
    is_able = torch.version.hip is None and torch.cuda.get_device_capability(index) >= _LEAST_CAPABILITY
    if not is_able or os.environ.get(VARIABLE) == "0":
        return _OFF
    return {"OVERLAPS": True, "launch_pdl": True}
