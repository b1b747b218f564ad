"""Searches the tiles of attention on a GPU: times candidates and prints the winning lines of `ops/triton/tile.py`.

python bench/gpu_tiles.py                                    # bf16 and fp8 caches, head sizes 64 and 128, four minutes
python bench/gpu_tiles.py --cache 2 --head-size 128 --seconds 60 --json tiles.json

A candidate that the shipped tile beats clearly on the first step is not timed on the others; one whose results are not
those of the shipped one is refused. The lines go into `_DECODE` and `_PREFILL`. A row of `gpu_check.py` times the few
of `FIRST`.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from gpu_kernels import GPU_SHAPES, attention_step, replayed_s, require_gpu
from gpu_parts.line import Lines, write_whole

# What a tile is judged by: (sequences, new tokens of each, tokens of each in all). The goals are about the firsts.
STEPS = {
    "decode": ((32, 1, 4096), (1, 1, 8192), (256, 1, 850)),
    "prefill": ((1, 8192, 8192), (1, 512, 8704), (8, 512, 2048)),
}
# Keys, warps, stages and least keys of a part; rows, keys, warps and stages. For bfloat16 and head size 128.
FIRST = {
    "decode": ((64, 4, 5), (32, 4, 5), (32, 4, 6), (32, 2, 5), (64, 2, 5), (64, 4, 3), (64, 4, 5, 64), (128, 4, 3)),
    "prefill": ((64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 4, 2), (128, 64, 4, 4), (64, 64, 4, 2), (256, 64, 8, 3)),
}
BOUND = 1e-2
"""Of ||results - those of the shipped tile|| / ||those||."""
CLEARLY = 1.15
"""A first step so many times slower than the best ends a candidate's search."""
REST_S = 230.0
"""Of `run_rest`."""


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
    for name, result in search_all(wanted, args.seconds):
        found[name] = result
        print(result["line"], f"# {result['gain']:.2f} times as fast as shipped, {result['tried']} tried", flush=True)
        if args.json:
            write_whole(args.json, json.dumps(found, indent=1))


def run(lines: Lines) -> None:
    """As a row of `gpu_check.py`: the goals of the shipped tiles first, then a few candidates, a line each."""
    import torch

    from lullm.ops.triton import tile

    names = {(kind, values): f"{kind} tile {values}" for kind, tiles in FIRST.items() for values in tiles}
    lines.plan(["shipped tiles", *names.values()])
    steps: dict[str, list[Any]] = {}
    with lines.case("shipped tiles") as figures, torch.inference_mode():
        for kind, shapes in STEPS.items():
            steps[kind] = [new_step(kind, torch.bfloat16, 128, *shape) for shape in shapes]
            shipped = (tile.decode_tile if kind == "decode" else tile.prefill_tile)(torch.bfloat16, 128)
            for step, shape in zip(steps[kind], shapes, strict=True):
                figures[f"{kind} {shape}"] = replayed_s(lambda step=step, tile=shipped: step(tile)) * 1e6
            figures |= goal_of(kind, figures[f"{kind} {shapes[0]}"] / 1e6)
    for (kind, values), name in names.items():
        with lines.case(name) as figures, torch.inference_mode():
            candidate = (tile.DecodeTile if kind == "decode" else tile.PrefillTile)(*values)
            for step, shape in zip(steps[kind], STEPS[kind], strict=True):
                figures[f"{kind} {shape}"] = replayed_s(lambda step=step, tile=candidate: step(tile)) * 1e6
                check(step, candidate)
            figures |= goal_of(kind, figures[f"{kind} {STEPS[kind][0]}"] / 1e6)


def run_rest(lines: Lines) -> None:
    """As a row of the long rest: a search for each of the other caches and head sizes."""
    kinds = [(kind, cache, size) for cache, size in ((1, 128), (2, 64), (1, 64)) for kind in ("decode", "prefill")]
    lines.plan(["{}-{}-{}".format(*kind) for kind in kinds])
    for name, result in search_all(kinds, REST_S):
        lines.passed(name, **{key: value for key, value in result.items() if key != "times"})


def goal_of(kind: str, seconds: float) -> dict[str, float]:
    """What the first step reaches: GB/s of keys and values, or TFLOP/s."""
    shape, (spans, query_len, context_len) = GPU_SHAPES["8b"], STEPS[kind][0]
    if kind == "decode":
        num_bytes = spans * context_len * 2 * shape["num_key_value_heads"] * shape["head_dim"] * 2
        return {"decode_gb_per_s": num_bytes / seconds / 1e9}
    num_pairs = spans * (query_len * (context_len - query_len) + query_len * (query_len + 1) / 2)
    return {"prefill_tflop_per_s": 4 * shape["num_attention_heads"] * shape["head_dim"] * num_pairs / seconds / 1e12}


def search_all(wanted: Sequence[tuple[str, int, int]], seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, result of `search`) of each; what one leaves of its share of the time, the others have."""
    ends = time.monotonic() + seconds
    for place, (kind, cache, head_size) in enumerate(wanted):
        share_s = (ends - time.monotonic()) / (len(wanted) - place)
        yield f"{kind}-{cache}-{head_size}", search(kind, cache, head_size, time.monotonic() + share_s)


def search(kind: str, cache_bytes: int, head_size: int, ends: float) -> dict[str, Any]:
    """The best tile by the geometric mean over the steps; the shipped one is always timed.

    Returns:
        'line': for `tile.py`; 'gain': the shipped tile's mean time by the winner's; 'tried': candidates;
        'times': seconds of each step by tile, of those that compiled.
    """
    import torch
    from gpu_parts import candidates as others

    from lullm.ops.triton import tile

    dtype = torch.bfloat16 if cache_bytes == 2 else torch.float8_e4m3fn
    shipped = (tile.decode_tile if kind == "decode" else tile.prefill_tile)(dtype, head_size)
    candidates = [shipped, *(others.DECODE_CANDIDATES if kind == "decode" else others.PREFILL_CANDIDATES)]
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
            check(step, candidate)
    except (triton.runtime.errors.OutOfResources, triton.compiler.errors.CompilationError, ArithmeticError) as error:
        print(f"    # {astuple(candidate)}: {type(error).__name__}", flush=True)
        return None
    return times


def new_step(kind: str, dtype: Any, head_size: int, spans: int, query_len: int, context_len: int) -> "Step":
    """What runs one attention with a tile."""
    import torch

    from lullm.ops.attention_layout import CausalScores
    from lullm.ops.triton.decode_attention import launch_decode
    from lullm.ops.triton.prefill_attention import launch_prefill
    from lullm.ops.triton.tile import decode_tile, prefill_tile

    cache_dtype = None if dtype == torch.bfloat16 else dtype
    q, cache, prepared = attention_step(spans, query_len, context_len, cache_dtype, head_size)
    out = torch.empty_like(q)
    launch = launch_decode if kind == "decode" else launch_prefill

    def run(tile: Any) -> Any:
        launch(out, q, cache, prepared, CausalScores(head_size**-0.5), tile)
        return out

    choose = decode_tile if kind == "decode" else prefill_tile
    return Step(run, run(choose(dtype, head_size)).clone())


@dataclass(frozen=True, slots=True)
class Step:
    """One attention, with the results of the shipped tile."""

    run: Callable[[Any], Any]
    expected: Any

    def __call__(self, tile: Any) -> Any:
        return self.run(tile)


def check(step: Step, tile: Any) -> None:
    """Raises ArithmeticError: this tile gives other results."""
    error = ((step(tile).float() - step.expected.float()).norm() / step.expected.float().norm()).item()
    if not error < BOUND:
        raise ArithmeticError(f"{astuple(tile)} is {error:.1e} away from the shipped tile's results")


def mean(seconds: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(sum(map(math.log, seconds)) / len(seconds))


def architecture() -> str:
    import torch

    return "sm{}{}".format(*torch.cuda.get_device_capability())


if __name__ == "__main__":
    main()
