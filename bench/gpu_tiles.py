"""Searches the tiles of attention on a GPU: times the candidates of `ops/triton/tile.py` and prints its winning lines.

python bench/gpu_tiles.py                                    # bf16 and fp8 caches, head sizes 64 and 128, four minutes
python bench/gpu_tiles.py --cache 2 --head-size 128 --seconds 60 --json tiles.json

A candidate that the shipped tile beats clearly on the first step is not timed on the others. The lines go into
`_DECODE` and `_PREFILL`. No GPU has run this yet.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from gpu_kernels import attention_step, replayed_s, require_gpu

# What a tile is judged by: (sequences, new tokens of each, tokens of each in all).
STEPS = {
    "decode": ((32, 1, 4096), (1, 1, 8192), (128, 1, 1024)),
    "prefill": ((1, 8192, 8192), (8, 512, 2048)),
}
CLEARLY = 1.15
"""A first step so many times slower than the best ends a candidate's search."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["decode", "prefill"], action="append")
    parser.add_argument("--cache", type=int, choices=[1, 2], action="append", help="bytes of a cached value")
    parser.add_argument("--head-size", type=int, choices=[64, 128, 256], action="append")
    parser.add_argument("--seconds", type=float, default=230.0, help="for all of it")
    parser.add_argument("--json", type=Path, help="write every time measured here")
    args = parser.parse_args()
    require_gpu()
    wanted = [
        (kind, cache, head_size)
        for head_size in args.head_size or [128, 64]
        for cache in args.cache or [2, 1]
        for kind in args.kind or ["decode", "prefill"]
    ]
    found: dict[str, Any] = {}
    ends = time.monotonic() + args.seconds
    for place, (kind, cache, head_size) in enumerate(wanted):
        share_s = (ends - time.monotonic()) / (len(wanted) - place)
        result = search(kind, cache, head_size, time.monotonic() + share_s)
        found[f"{kind}-{cache}-{head_size}"] = result
        print(result["line"], f"# {result['gain']:.2f} times as fast as shipped, {result['tried']} tried", flush=True)
        if args.json:
            unfinished = args.json.with_suffix(".part")
            unfinished.write_text(json.dumps(found, indent=1))
            unfinished.replace(args.json)


def search(kind: str, cache_bytes: int, head_size: int, ends: float) -> dict[str, Any]:
    """The best tile by the geometric mean over the steps; the shipped one is always timed.

    Returns:
        'line': for `tile.py`; 'gain': the shipped tile's mean time by the winner's; 'tried': candidates;
        'times': seconds of each step by tile, of those that compiled.
    """
    import torch

    from lullm.ops.triton import tile

    dtype = torch.bfloat16 if cache_bytes == 2 else torch.float8_e4m3fn
    shipped = (tile.decode_tile if kind == "decode" else tile.prefill_tile)(dtype, head_size)
    candidates = [shipped, *(tile.DECODE_CANDIDATES if kind == "decode" else tile.PREFILL_CANDIDATES)]
    with torch.inference_mode():
        steps = [new_step(kind, dtype, head_size, *shape) for shape in STEPS[kind]]
        times: dict[Any, list[float]] = {}
        tried = 0
        for candidate in dict.fromkeys(candidates):
            if tried and time.monotonic() > ends:
                break
            tried += 1
            found = time_steps(candidate, steps, min((t[0] for t in times.values()), default=math.inf))
            if found is not None:
                times[candidate] = found
    whole = {candidate: mean(found) for candidate, found in times.items() if len(found) == len(steps)}
    best = min(whole, key=whole.__getitem__)
    name = type(best).__name__
    values = ", ".join(map(str, astuple(best)))
    return {
        "line": f'    ("{architecture()}", {cache_bytes}, {head_size}): {name}({values}),',
        "gain": whole[shipped] / whole[best],
        "tried": tried,
        "times": {str(astuple(candidate)): found for candidate, found in times.items()},
    }


def time_steps(candidate: Any, steps: Sequence[Any], best_s: float) -> list[float] | None:
    """Seconds of each step, or of the first alone if it is clearly slower than `best_s`; None: it does not compile."""
    import triton

    times = []
    try:
        for step in steps:
            times.append(replayed_s(lambda step=step: step(candidate)))
            if times[0] > CLEARLY * best_s:
                break
    except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError) as error:
        print(f"    # {astuple(candidate)}: {type(error).__name__}", flush=True)
        return None
    return times


def new_step(kind: str, dtype: Any, head_size: int, spans: int, query_len: int, context_len: int) -> Any:
    """A function of a tile that runs one attention with it."""
    import torch

    from lullm.ops.triton.decode_attention import launch_decode
    from lullm.ops.triton.prefill_attention import launch_prefill

    cache_dtype = None if dtype == torch.bfloat16 else dtype
    q, cache, prepared = attention_step(spans, query_len, context_len, cache_dtype, head_size)
    out = torch.empty_like(q)
    launch = launch_decode if kind == "decode" else launch_prefill
    return lambda tile: launch(out, q, cache, prepared, head_size**-0.5, tile)


def mean(seconds: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, seconds)) / len(seconds))


def architecture() -> str:
    import torch

    return "sm{}{}".format(*torch.cuda.get_device_capability())


if __name__ == "__main__":
    main()
