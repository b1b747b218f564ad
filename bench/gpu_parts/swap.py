"""Blocks over the bus beside a product: GB/s, and how much slower the product becomes, by the copy's programs."""

from typing import Any

from gpu_parts.line import Lines

PROGRAMS = (4, 8, 16, 32)
NUM_LAYERS, NUM_BLOCKS = 36, 128
PRODUCT = 8192
ROUNDS = 4


def run(lines: Lines) -> None:
    from lullm.ops.triton import block_copy

    names = {f"{direction} by {num} programs": (direction, num) for direction in ("out", "in") for num in PROGRAMS}
    lines.plan([*names, "copy engine"])
    pool, host, product = make()
    usual = block_copy.HOST_COPY_PROGRAMS
    try:
        for name, (direction, num) in names.items():
            with lines.case(name) as figures:
                block_copy.HOST_COPY_PROGRAMS = num
                sides = (pool, host) if direction == "out" else (host, pool)
                pairs = [(i, i) for i in range(NUM_BLOCKS)]
                figures |= beside(product, lambda s=sides, p=pairs: block_copy.swap_blocks(*s, p), bytes_of(pool))
    finally:
        block_copy.HOST_COPY_PROGRAMS = usual
    with lines.case("copy engine") as figures:
        figures |= beside(product, lambda: copy_all(pool, host), bytes_of(pool))


def make() -> tuple[Any, Any, Any]:
    """(blocks on the device, blocks in pinned memory, a function that enqueues products)."""
    import torch

    from lullm.ops.cache.layer_cache import LayerCache

    dims = (NUM_BLOCKS, 16, 8, 128)
    pool, host = (
        [LayerCache(*(torch.zeros(dims, dtype=torch.bfloat16, **place) for _ in "kv")) for _ in range(NUM_LAYERS)]
        for place in ({"device": "cuda"}, {"pin_memory": True})
    )
    a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return pool, host, lambda: torch.mm(a, b, out=out)


def bytes_of(caches: Any) -> int:
    return sum(side.nbytes for cache in caches for side in cache.tensors)


def copy_all(sources: Any, targets: Any) -> None:
    for source, target in zip(sources, targets, strict=True):
        for a, b in zip(source.tensors, target.tensors, strict=True):
            b.copy_(a, non_blocking=True)


def beside(product: Any, copy: Any, num_bytes: int) -> dict[str, float]:
    """Both alone, then both at a time on two streams, the products for at least as long as the copy."""
    import torch

    side = torch.cuda.Stream()

    def timed(work: Any) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    for work in (product, copy):
        work()
    torch.cuda.synchronize()
    product_s = min(timed(product) for _ in range(ROUNDS))
    copy_s = min(timed(copy) for _ in range(ROUNDS))
    num = max(2, int(2 * copy_s / product_s) + 1)
    copied: list[tuple[Any, Any]] = []

    def both() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            marks = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            marks[0].record()
            copy()
            marks[1].record()
        copied.append(marks)
        for _ in range(num):
            product()

    found = []
    for _ in range(ROUNDS):
        found.append(timed(both))
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
    beside_s = min(start.elapsed_time(end) / 1e3 for start, end in copied)
    return {
        "alone_gb_per_s": num_bytes / copy_s / 1e9,
        "beside_gb_per_s": num_bytes / beside_s / 1e9,
        "product_ms": 1e3 * product_s,
        # of the part of the products' time in which the copy ran
        "slowdown": 1 + (min(found) - num * product_s) / min(beside_s, num * product_s),
    }
