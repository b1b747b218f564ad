"""Merges the answers of several engines: sums of counts, maxima of times, the deepest sleep state."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, zip_longest
from typing import Any

from lullm.types.monitor.occupancy import (
    FIRST_OWNER_CELL,
    MAX_OWNERS,
    SHARED_CELL,
    Occupancy,
    PoolOccupancy,
    RequestOccupancy,
)
from lullm.types.monitor.stats import EngineStats, TokenGaps
from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.sleep import SleepState


def merged_stats(parts: Sequence[EngineStats]) -> EngineStats:
    """The sums of all counters and gauges."""
    names = [field.name for field in dataclasses.fields(EngineStats) if field.type is int]
    balances = [part.expert_balance for part in parts if part.expert_balance is not None]
    gaps = [part.token_gaps for part in parts]
    counts = tuple(map(sum, zip(*(each.counts for each in gaps), strict=True)))
    positions = (part.accepted_by_position_total for part in parts)
    return EngineStats(
        accepted_by_position_total=tuple(map(sum, zip_longest(*positions, fillvalue=0))),
        draft_seconds_total=sum(part.draft_seconds_total for part in parts),
        **{name: sum(getattr(part, name) for part in parts) for name in names},
        preemptions_total=_summed([part.preemptions_total for part in parts]),
        finished_total=_summed([part.finished_total for part in parts]),
        expert_balance=sum(balances) / len(balances) if balances else None,
        token_gaps=TokenGaps(gaps[0].bounds_s, counts, sum(each.sum_s for each in gaps)),
    )


def merged_load(parts: Sequence[ExpertLoad]) -> ExpertLoad:
    """The loads of all engines; each engine's workers are numbered after those of the engine before it."""
    num_workers = [
        1 + max((w for each in part.workers.values() for having in each for w in having), default=0) for part in parts
    ]
    firsts = list(accumulate(num_workers, initial=0))
    return ExpertLoad(
        {
            layer: [sum(each) for each in zip(*(part.tokens[layer] for part in parts), strict=True)]
            for layer in parts[0].tokens
        },
        {
            layer: [
                [first + worker for first, having in zip(firsts, each, strict=False) for worker in having]
                for each in zip(*(part.workers[layer] for part in parts), strict=True)
            ]
            for layer in parts[0].workers
        },
    )


def merged_move(parts: Sequence[ExpertMove]) -> ExpertMove:
    """The moves of all engines, and the mean of their gains."""
    before, after = (
        sum(values) / len(parts) for values in zip(*((part.before, part.after) for part in parts), strict=True)
    )
    return ExpertMove(sum(part.num_moved for part in parts), before, after, max(part.seconds for part in parts))


def merged_state(states: Sequence[SleepState]) -> SleepState:
    """The state of all engines; 'partial' if they differ."""
    return states[0] if len(set(states)) == 1 else "partial"


def merged_occupancy(parts: Sequence[Occupancy]) -> Occupancy:
    """The pools one after the other, and all requests; those after MAX_OWNERS share the last number."""
    requests: list[RequestOccupancy] = []
    cells: list[tuple[bytes, bytes]] = []
    for part in parts:
        table = bytes(_renumbered(cell, len(requests)) for cell in range(256))
        cells.append((part.device.cells.translate(table), part.host.cells.translate(table)))
        requests += part.requests
    return Occupancy(
        parts[0].block_size,
        _joined([part.device for part in parts], [device for device, _ in cells]),
        _joined([part.host for part in parts], [host for _, host in cells]),
        tuple(requests[:MAX_OWNERS]),
        sum(part.resident_bytes for part in parts),
        max(part.seconds for part in parts),
    )


def _renumbered(cell: int, offset: int) -> int:
    owner = cell & ~SHARED_CELL
    if owner < FIRST_OWNER_CELL:
        return cell
    return min(owner + offset, FIRST_OWNER_CELL + MAX_OWNERS - 1) | (cell & SHARED_CELL)


def _joined(pools: Sequence[PoolOccupancy], cells: Sequence[bytes]) -> PoolOccupancy:
    num_blocks = sum(pool.num_blocks for pool in pools)
    return PoolOccupancy(num_blocks, max(pool.blocks_per_cell for pool in pools), b"".join(cells))


def _summed(parts: Sequence[dict[Any, int]]) -> dict[Any, int]:
    found: Counter[Any] = Counter()
    for part in parts:
        found.update(part)
    return dict(found)
