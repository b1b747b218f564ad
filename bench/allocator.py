"""The block allocators: bytes of metadata per block, and operations per second of processor time on one core.

python bench/allocator.py [--num-blocks 1000000]
"""

import argparse
import gc
import hashlib
import statistics
import time
import tracemalloc

from lullm.kv.allocator import NaiveBlockAllocator, PrefixCachingBlockAllocator

KINDS = (NaiveBlockAllocator, PrefixCachingBlockAllocator)
BATCH = 1000  # blocks that are taken and given back together: a few long sequences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-blocks", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    print(f"{args.num_blocks} blocks\n\n| allocator | metadata | bytes per block |\n|---|--:|--:|")
    for kind in KINDS:
        empty, full = metadata_bytes(kind, args.num_blocks)
        taken = "all taken" if kind is NaiveBlockAllocator else "all taken, all contents known"
        for name, size in zip(("all free", taken), (empty, full), strict=True):
            print(f"| {kind.__name__}, {name} | {size / 1e6:.0f} MB | {size / args.num_blocks:.0f} |")
    print("\n| operation | allocator | million per second, median | runs |\n|---|---|--:|---|")
    for kind in KINDS:
        show("allocate or release", kind, [traffic(kind(args.num_blocks)) for _ in range(args.repeat)])
    speeds = [caching_traffic(PrefixCachingBlockAllocator(args.num_blocks // 10)) for _ in range(args.repeat)]
    show("allocate with eviction, promote, or release", PrefixCachingBlockAllocator, speeds)
    speeds = [hits(PrefixCachingBlockAllocator(args.num_blocks // 10)) for _ in range(args.repeat)]
    show("find, share or release a cached block", PrefixCachingBlockAllocator, speeds)


def show(name: str, kind: type, speeds: list[float]) -> None:
    span = f"{min(speeds) / 1e6:.2f}-{max(speeds) / 1e6:.2f}"
    print(f"| {name} | {kind.__name__} | {statistics.median(speeds) / 1e6:.2f} | {span} |", flush=True)


def content(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def metadata_bytes(kind, num_blocks: int) -> tuple[int, int]:
    """What the allocator costs with all blocks free, and the most it costs with all taken and promoted.

    The hashes themselves are counted, too, though a block table in use holds the same objects.
    """
    gc.collect()
    tracemalloc.start()
    allocator = kind(num_blocks)
    empty = tracemalloc.get_traced_memory()[0]
    for _ in range(num_blocks):
        allocator.promote(allocator.allocate(), content(allocator.num_free))
    full = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return empty, full


def traffic(allocator, num_rounds: int = 200) -> float:
    """Operations per second: blocks without content come and go."""
    started = time.process_time()
    for _ in range(num_rounds):
        block_ids = [allocator.allocate() for _ in range(BATCH)]
        allocator.release(block_ids)
    return 2 * BATCH * num_rounds / (time.process_time() - started)


def caching_traffic(allocator: PrefixCachingBlockAllocator, num_rounds: int = 100) -> float:
    """Operations per second: every block that is taken evicts a content and becomes findable under a new one."""
    fill(allocator)
    contents = [content(-number % 2**63) for number in range(1, BATCH * num_rounds + 1)]
    started = time.process_time()
    for number in range(num_rounds):
        block_ids = [allocator.allocate() for _ in range(BATCH)]
        for block_id, block_hash in zip(block_ids, contents[number * BATCH : (number + 1) * BATCH], strict=True):
            allocator.promote(block_id, block_hash)
        allocator.release(reversed(block_ids))
    return 3 * BATCH * num_rounds / (time.process_time() - started)


def hits(allocator: PrefixCachingBlockAllocator, num_rounds: int = 100) -> float:
    """Operations per second: free blocks are found by their content and taken out of the middle of the free queue."""
    contents = fill(allocator)
    started = time.process_time()
    for number in range(num_rounds):
        first = number * BATCH % (len(contents) - BATCH)
        block_ids = [allocator.find(block_hash) for block_hash in contents[first : first + BATCH]]
        for block_id in block_ids:
            allocator.share(block_id)
        allocator.release(reversed(block_ids))
    return 3 * BATCH * num_rounds / (time.process_time() - started)


def fill(allocator: PrefixCachingBlockAllocator) -> list[bytes]:
    """Every block is cached and free; the contents."""
    contents = [content(number) for number in range(allocator.num_blocks)]
    block_ids = [allocator.allocate() for _ in contents]
    for block_id, block_hash in zip(block_ids, contents, strict=True):
        allocator.promote(block_id, block_hash)
    allocator.release(block_ids)
    return contents


if __name__ == "__main__":
    main()
