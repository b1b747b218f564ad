"""Members of a group in threads of one process, each with an end of its own."""

import threading

from lullm.ops.cpu.library import absence
from lullm.types.parallel.placement import placements
from lullm.worker.meeting import Meeting, open_seat

TRANSPORTS = ["gloo"] if absence() else ["gloo", "memory"]


def run_seats(transport, work, tensor=1, pipeline=1, timeout=30.0):
    """`work(seat)` of every worker of a grid, by rank."""
    grid = placements(tensor, pipeline)
    with Meeting.on_this_host(timeout, transport) as meeting:
        return run_members(len(grid), lambda rank: open_seat(grid[rank], meeting.rendezvous), work)


def run_members(size, join, work):
    """`work(join(rank))` of every member, by rank; what `join` gave is closed. The first error is raised."""
    found, errors = [None] * size, []

    def run(rank):
        try:
            end = join(rank)
            try:
                found[rank] = work(end)
            finally:
                end.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a member waits for ever"
    if errors:
        raise errors[0]
    return found


def sum_in_order(parts):
    """The golden sum of `[size, ...]`: in rank order, in float32, rounded once."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts.dtype)
