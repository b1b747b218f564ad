"""Copies of blocks, as pairs of (source, destination) block ids."""

BlockPairs = list[tuple[int, int]]


def independent_batches(pairs: BlockPairs) -> list[BlockPairs]:
    """Cut the list into batches that run one after the other; the copies of a batch may run in any order.

    A batch ends before a pair that reads what the batch writes, or writes what it reads or writes.
    """
    batches: list[BlockPairs] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, destination in pairs:
        if not batches or source in written or destination in written or destination in read:
            batches.append([])
            read.clear()
            written.clear()
        batches[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return batches
