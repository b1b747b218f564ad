"""What a CPU can do at most: the sum over a gigabyte of memory (reading), and the instruction set's products alone.

With AMX the products are of numbers that come from the first-level cache, otherwise of zeros in registers. Neighbours
on the same host change both by a third from minute to minute: so they are measured in turn with what is compared.
"""

import statistics
import time
from collections.abc import Callable

import torch

from lullm.arena.host import HostArena
from lullm.ops.cpu.library import load_library
from lullm.ops.cpu.native import DTYPES

READ_BYTES = 1 << 30
ROUNDS = 200_000
"""Of products: 10 ms and more, beside which the half millisecond that threads take to wake up behind another version is
little."""


def measure(versions: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Median seconds of each version; they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in versions}
    for name in versions:
        versions[name]()
    for _ in range(repeat):
        for name, run in versions.items():
            started = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


class Ceilings:
    """Needs the native ops. `versions` go to `measure` beside others, until `close`."""

    def __init__(self) -> None:
        library = load_library()
        assert library is not None
        self.arena = HostArena("ceiling", READ_BYTES)
        memory = self.arena.empty((READ_BYTES // 8,), torch.float64).fill_(1)
        multiply, dtype = library.handle.lullm_spin_products, DTYPES[torch.bfloat16]
        self.versions: dict[str, Callable[[], object]] = {
            "read": memory.sum,
            "products": lambda: multiply(ROUNDS, dtype),
        }
        self.operations = multiply(ROUNDS, dtype)

    def read_s(self, num_bytes: float, seconds: dict[str, float]) -> float:
        """The least seconds for reading, after `seconds` of the versions that `measure` found."""
        return num_bytes / READ_BYTES * seconds["read"]

    def multiply_s(self, operations: float, seconds: dict[str, float]) -> float:
        return operations / self.operations * seconds["products"]

    def figures(self, repeat: int) -> dict[str, float]:
        """Both, and torch's bfloat16 product of 1,024 rows; printed, too."""
        x, weight = torch.randn(1024, 3072).bfloat16(), torch.randn(3072, 3072).bfloat16()
        seconds = measure(self.versions | {"torch": lambda: torch.nn.functional.linear(x, weight)}, repeat)
        found = {
            "read GB/s": READ_BYTES / seconds["read"] / 1e9,
            "TFLOP/s": 2 * 1024 * 3072**2 / seconds["torch"] / 1e12,
            "products TFLOP/s": self.operations / seconds["products"] / 1e12,
        }
        print("  ceilings: " + ", ".join(f"{name} {value:.2f}" for name, value in found.items()), flush=True)
        return found

    def close(self) -> None:
        self.versions.clear()
        self.arena.close()
