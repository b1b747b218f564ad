"""Reports on a scheduler: `take_stats` (numbers) and `take_occupancy` (the owners of blocks)."""

import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lullm.machine.memory import resident_bytes
from lullm.sched.scheduler import Scheduler
from lullm.types.monitor.occupancy import (
    CACHED_CELL,
    FIRST_OWNER_CELL,
    MAX_OWNERS,
    SHARED_CELL,
    Occupancy,
    PoolOccupancy,
    QueueName,
    RequestOccupancy,
)
from lullm.types.monitor.stats import EngineStats
from lullm.types.sequence import SequenceGroup
from lullm.units import cdiv


def take_stats(
    scheduler: Scheduler, num_steps: int, finished: Mapping[str, int], expert_balance: float | None = None
) -> EngineStats:
    """The current numbers; from any thread, while another one steps. `finished`: requests by finish reason."""
    space = scheduler.block_space
    return EngineStats(
        num_running=len(scheduler.running),
        num_running_prompt_tokens=sum(len(group.request.prompt_token_ids) for group in tuple(scheduler.running)),
        num_waiting=len(scheduler.waiting),
        num_swapped=len(scheduler.swapped),
        num_blocks=space.num_blocks,
        num_used_blocks=space.num_used_blocks,
        num_host_blocks=space.num_host_blocks,
        num_used_host_blocks=space.num_used_host_blocks,
        prefix_cache_queries_total=space.prefix_cache.queries,
        prefix_cache_hits_total=space.prefix_cache.hits,
        prefix_cache_host_hits_total=space.prefix_cache.host_hits,
        preemptions_total={**scheduler.preemption.counts},
        prompt_tokens_total=scheduler.stats.prompt_tokens,
        generation_tokens_total=scheduler.stats.generation_tokens,
        pooled_total=scheduler.stats.pooled,
        kv_cache_full_total=scheduler.stats.kv_cache_full,
        drafts_total=scheduler.stats.num_drafts,
        draft_tokens_total=scheduler.stats.num_draft_tokens,
        accepted_tokens_total=scheduler.stats.num_accepted_tokens,
        num_waiting_for_adapter=scheduler.waiting.num_parked,
        adapter_moves_total=scheduler.waiting.num_moves,
        accepted_by_position_total=tuple(scheduler.stats.accepted_by_position),
        quiet_steps_total=0 if scheduler.guesser is None else scheduler.guesser.num_quiet_steps,
        draft_seconds_total=scheduler.stats.draft_s,
        steps_total=num_steps,
        finished_total=dict(finished),
        token_gaps=scheduler.stats.gaps.snapshot(),
        expert_balance=expert_balance,
    )


class _Painter:
    """The cells of one pool's picture."""

    def __init__(self, num_blocks: int, cached_ids: Iterable[int]):
        self._owners = np.zeros(num_blocks, np.uint8)  # [num_blocks]
        self._num_holders = np.zeros(num_blocks, np.int32)  # [num_blocks]: sequences
        self._owners[np.fromiter(cached_ids, np.int64)] = CACHED_CELL

    def hold(self, block_ids: np.ndarray[Any, Any], owner: int) -> None:
        """Mark `block_ids` as held by one sequence of the request with the number `owner`, each once."""
        # A block that several requests hold keeps the first one's number.
        fresh = block_ids[self._num_holders[block_ids] == 0]
        self._owners[fresh] = FIRST_OWNER_CELL + owner
        self._num_holders[block_ids] += 1

    def cells(self, max_cells: int) -> PoolOccupancy:
        """The picture, in at most `max_cells` cells."""
        num_blocks = len(self._owners)
        if not num_blocks:
            return PoolOccupancy(0, 1, b"")
        self._owners[self._num_holders > 1] |= SHARED_CELL
        blocks_per_cell = cdiv(num_blocks, max_cells)
        cells = np.maximum.reduceat(self._owners, np.arange(0, num_blocks, blocks_per_cell))
        return PoolOccupancy(num_blocks, blocks_per_cell, cells.tobytes())


def take_occupancy(scheduler: Scheduler, max_cells: int) -> Occupancy:
    """The owners of all blocks now, in at most `max_cells` cells per pool. For the thread that steps, between steps.

    O(blocks in use) in Python's loops over tables, and numpy over the blocks of the pools.
    """
    started = time.perf_counter()
    space = scheduler.block_space
    device_cached, host_cached = space.cached_ids()
    painters: dict[QueueName, _Painter] = {
        "running": _Painter(space.num_blocks, device_cached),
        "swapped": _Painter(space.num_host_blocks, host_cached),
    }
    requests: list[RequestOccupancy] = []
    owners = itertools.count()
    queues: tuple[tuple[QueueName, list[SequenceGroup]], ...] = (
        ("running", scheduler.running),
        ("swapped", list(scheduler.swapped)),
    )
    for queue, groups in queues:
        for group in groups:
            owner = min(next(owners), MAX_OWNERS - 1)
            held: set[int] = set()
            for seq in group.unfinished:
                ids = np.concatenate([np.array(ids, np.int32) for ids in space.block_ids(seq)])
                ids = ids[ids >= 0]  # NULL_BLOCK: it has left the window
                painters[queue].hold(ids, owner)
                held.update(ids.tolist())
            requests.append(_request(group, queue, len(held)))
    waiting = itertools.islice(scheduler.waiting, max(MAX_OWNERS - len(requests), 0))
    requests += [_request(group, "waiting", 0) for group in waiting]
    return Occupancy(
        space.block_size,
        painters["running"].cells(max_cells),
        painters["swapped"].cells(max_cells),
        tuple(requests[:MAX_OWNERS]),
        resident_bytes(),
        time.perf_counter() - started,
    )


def _request(group: SequenceGroup, queue: QueueName, num_blocks: int) -> RequestOccupancy:
    seqs = group.seqs
    output_len = sum(seq.output_len for seq in seqs)
    return RequestOccupancy(group.request_id, queue, seqs[0].prompt_len, output_len, num_blocks)
