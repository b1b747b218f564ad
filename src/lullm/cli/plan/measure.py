"""Speeds of this machine's memory and processor, measured in half a second."""

import time
from collections.abc import Callable


def measure() -> tuple[float, float]:
    """(bytes per second that a sum reads, operations per second of torch's bfloat16 product); takes 0.5 s."""
    import torch

    memory = torch.ones(1 << 25, dtype=torch.float64)  # 256 MiB, beyond the caches
    x, weight = torch.ones(1024, 2048).bfloat16(), torch.ones(2048, 2048).bfloat16()
    return memory.nbytes / _least_s(lambda: memory.sum()), 2 * 1024 * 2048 * 2048 / _least_s(lambda: x @ weight.T)


def _least_s(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
