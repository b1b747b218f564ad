"""Launches kernels on a driver of no device, and compares what reaches it with what Triton's own launcher passes.

Run by test_launch.py, in a process where kernels are not interpreted. Prints what it has found as JSON.
"""

import json
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import gpu_host
import torch

device = gpu_host.stand_in()

from lullm.ops.triton.elementwise import RMS_NORM, add_rms_norm, rms_norm, silu_mul  # noqa: E402
from lullm.ops.triton.launch import Kernel  # noqa: E402

PLACE = slice(3, 6)  # stream, function, packed metadata; then come three of hooks


def launched(call):
    """(grid, stream, function, metadata, arguments) of each launch; an address stands for a tensor."""
    device.launches = []
    call()
    return [
        (*launch[:6], *[a.data_ptr() if isinstance(a, torch.Tensor) else a for a in launch[9:]])
        for launch in device.launches
    ]


def alike(calls):
    """Whether the second launch of each is what Triton's own launcher makes of the same call, but for new memory."""
    found = {}
    for name, call in calls.items():
        call()
        with mock.patch("torch.empty", lambda *_, **__: NEW):
            again = launched(call)
            with mock.patch.object(Kernel, "__getitem__", lambda kernel, grid: kernel._jit[grid]):
                found[name] = again == launched(call) and bool(again)
    return found


NEW = torch.zeros(1 << 20, dtype=torch.bfloat16)


def main():
    report = {"alike": alike(gpu_host.ops())}

    x, weight = torch.zeros(8, 64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16)
    before = device.num_loaded
    for rows in (1, 5, 8):
        add_rms_norm(x[:rows], x[:rows], weight, 1e-6)
    report["rows"] = device.num_loaded - before
    unaligned = torch.zeros(65, dtype=torch.bfloat16)[1:]
    add_rms_norm(x, x, unaligned, 1e-6)
    report["unaligned"] = device.num_loaded - before
    rms_norm(x.float(), weight.float(), 1e-6)
    report["float32, no residual"] = device.num_loaded - before
    report["variants"] = len(RMS_NORM.variants)

    import triton

    seen = []
    hook = lambda metadata: seen.append(metadata)  # noqa: E731
    triton.knobs.runtime.launch_enter_hook.add(hook)
    device.launches = []
    silu_mul(torch.zeros(4, 64, dtype=torch.bfloat16))
    silu_mul(torch.zeros(4, 64, dtype=torch.bfloat16))
    report["hooked"] = [launch[6] is not None for launch in device.launches]
    print(json.dumps(report))


main()
