"""Members of a group in threads of one process, each with an end of its own."""

import threading


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
