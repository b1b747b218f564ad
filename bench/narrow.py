"""Linear layers over FP8 and MXFP4 weights beside bfloat16, in one process, in turn.

python bench/narrow.py [--size 4096] [--threads 2]
"""

import argparse
import time
from collections.abc import Callable

import torch

from lullm.ops.cpu import native, quantized_native
from lullm.ops.cpu.library import load_library
from lullm.ops.quantized.narrow import NarrowLayout

NUM_WEIGHTS = 8
"""So that they come from memory, not from a cache."""


def seconds(run: Callable[[], object], rounds: int) -> float:
    """The median of some runs."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[rounds // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    assert load_library() is not None, "the native library is needed"
    native.set_num_threads(options.threads)
    size = options.size
    whole = [torch.randn(size, size).bfloat16() for _ in range(NUM_WEIGHTS)]
    kinds = {"FP8, blocks": NarrowLayout(False, size, size, 128), "MXFP4": NarrowLayout(True, size, size, 32)}
    stored = {}
    for name, layout in kinds.items():
        storages = [torch.zeros(layout.shape, dtype=torch.uint8) for _ in range(NUM_WEIGHTS)]
        for storage, weight in zip(storages, whole, strict=True):
            quantized_native.store_narrow_(storage, layout, 0, layout.quantize(weight))
        stored[name] = storages
    for weight in whole:
        native.pack_weight_(weight)
    for num_rows in (1, 2, 16, 64, 512):
        x = torch.randn(num_rows, size).bfloat16()
        rounds = 15 if num_rows <= 16 else 5
        plain = seconds(lambda x=x: [native.linear(x, weight, None) for weight in whole], rounds)
        line = f"{num_rows:4} rows: bfloat16 {plain / NUM_WEIGHTS * 1e3:.3f} ms"
        for name, layout in kinds.items():
            taken = seconds(
                lambda x=x, name=name, layout=layout: [
                    quantized_native.quantized_linear(x, storage, layout, None) for storage in stored[name]
                ],
                rounds,
            )
            line += f"; {name} {taken / NUM_WEIGHTS * 1e3:.3f} ms, x {plain / taken:.2f}"
        print(line)


if __name__ == "__main__":
    main()
