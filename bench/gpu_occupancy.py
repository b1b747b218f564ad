"""Tiles of attention by what the compiler makes of them: registers, shared memory, spills, programs at once. No GPU.

python bench/gpu_occupancy.py                            # the table of docs/gpu-tiles.md: some minutes
python bench/gpu_occupancy.py --kind decode --capability 90 --head-size 64 --cache fp8

A decode tile has two buffers of keys and values once its shared memory is four of their tiles: then the next keys
travel while these are computed with.
"""

import argparse
import os
from dataclasses import astuple
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"  # read when triton is imported

from gpu_parts.compiled import MULTIPROCESSORS, compile_attention  # noqa: E402

CACHES = {"bf16": "bf16", "fp8": "fp8e4nv"}
HEAD = "| | tile | sm | registers | shared, KiB | spilled | programs at once | K/V buffers | instructions |\n" \
    "|---|---|--:|--:|--:|--:|--:|--:|---|"  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["decode", "prefill", "split"], action="append")
    parser.add_argument("--capability", type=int, choices=MULTIPROCESSORS, action="append")
    parser.add_argument("--head-size", type=int, choices=[64, 128, 256, 512], default=128)
    parser.add_argument("--cache", choices=CACHES, default="bf16")
    parser.add_argument("--shipped", action="store_true", help="no other candidates")
    args = parser.parse_args()
    print(HEAD)
    for kind in args.kind or ["decode", "prefill"]:
        for tile in tiles_of(kind, args.head_size, args.cache, args.shipped):
            for capability in args.capability or MULTIPROCESSORS:
                print(line(kind, tile, args.head_size, args.cache, capability), flush=True)


def tiles_of(kind: str, head_size: int, cache: str, only_shipped: bool = False) -> list[Any]:
    """The shipped tile first, then what `gpu_tiles.py` would try, without those that differ in their splits alone."""
    from gpu_parts.candidates import DECODE_CANDIDATES, PREFILL_CANDIDATES

    from lullm.ops.triton import tile

    item_bytes = 1 if cache == "fp8" else 2
    table, small = (tile._DECODE, tile._SMALL_DECODE) if kind == "decode" else (tile._PREFILL, tile._SMALL_PREFILL)
    shipped = table.get(("sm90", item_bytes, head_size), small)
    if kind == "split":
        shipped = tile.split_tile(shipped)
    candidates = DECODE_CANDIDATES if kind == "decode" else PREFILL_CANDIDATES
    found = {astuple(shipped)[:-1]: shipped}
    for candidate in () if only_shipped else candidates:
        if kind != "decode" and candidate.block_keys < 64 and head_size <= 128:
            continue  # for the largest heads
        found.setdefault(astuple(candidate)[:-1], candidate)
    return list(found.values())


def line(kind: str, tile: Any, head_size: int, cache: str, capability: int) -> str:
    """One row of the table."""
    name = f"| {kind}, {cache}, D {head_size} | {', '.join(map(str, astuple(tile)[:-1]))} | {capability} |"
    try:
        found = compile_attention(kind, tile, head_size, CACHES[cache], capability)
    except Exception as error:  # the compiler's own have no common class
        return f"{name} | | | | | does not compile: {type(error).__name__} |"
    num_buffers = found.shared_bytes / (2 * tile.block_keys * head_size * (1 if cache == "fp8" else 2))
    return (
        f"{name} {found.registers} | {found.shared_bytes / 1024:.0f} | {found.spilled_bytes or '-'} | "
        f"{found.programs_at_once or 'too large'} | {num_buffers:.1f} | {', '.join(found.instructions)} |"
    )


if __name__ == "__main__":
    main()
