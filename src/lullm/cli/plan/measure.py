"""Speeds of this machine's memory and processor, measured in half a second."""

import time
from collections.abc import Callable
from typing import Any

NUM_ROWS, NUM_COLUMNS = 1024, 2048


def measure() -> tuple[float, float]:
    """(bytes per second that a sum reads, operations per second of torch's product); takes 0.5 s.

    The product is in bfloat16, or in float32 where a few rows show that it is faster: without instructions for bfloat16
    torch's took 0.5 s and was a seventh as fast, while lullm's kernels multiply such weights in float32.
    """
    import torch

    memory = torch.ones(1 << 25, dtype=torch.float64)  # 256 MiB, beyond the caches
    few = {dtype: _least_s(_product(dtype, 32)) for dtype in (torch.bfloat16, torch.float32)}
    whole = _product(min(few, key=few.__getitem__), NUM_ROWS)
    return memory.nbytes / _least_s(memory.sum), 2 * NUM_ROWS * NUM_COLUMNS**2 / _least_s(whole)


def _product(dtype: Any, num_rows: int) -> Callable[[], object]:
    import torch

    x, weight = torch.ones(num_rows, NUM_COLUMNS, dtype=dtype), torch.ones(NUM_COLUMNS, NUM_COLUMNS, dtype=dtype)
    return lambda: x @ weight.T


def _least_s(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
