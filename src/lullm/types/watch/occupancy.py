"""Occupancy: which request holds which part of the KV cache at one moment, as plain data for live pictures.

`lullm.kv.snapshot` says everything of every block and costs time for it; this costs little, and has a bounded size.
"""

from dataclasses import dataclass
from typing import Literal

FREE_CELL = 0
CACHED_CELL = 1
FIRST_OWNER_CELL = 2
SHARED_CELL = 128
"""Added to an owner's number: several sequences hold the block."""
MAX_OWNERS = SHARED_CELL - FIRST_OWNER_CELL
"""Requests that have a number of their own. Those behind them are not named, and share the last number."""

QueueName = Literal["running", "swapped", "waiting"]


@dataclass(frozen=True, slots=True)
class PoolOccupancy:
    """One pool as a row of cells, a byte each, of `blocks_per_cell` blocks (the last one perhaps of fewer).

    A cell shows the highest number among its blocks: FREE_CELL, CACHED_CELL (no sequence holds it, but its content can
    be found), or FIRST_OWNER_CELL + the owner's place in `Occupancy.requests`, and SHARED_CELL on top.
    """

    num_blocks: int
    blocks_per_cell: int
    cells: bytes


@dataclass(frozen=True, slots=True)
class RequestOccupancy:
    """One request that has not ended. `num_blocks` counts each block once, however many of its sequences hold it."""

    request_id: str
    queue: QueueName
    prompt_len: int
    output_len: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Both pools, and the first MAX_OWNERS requests: running, then swapped out, then waiting ones.

    Attributes:
        resident_bytes: physical memory of the engine's process.
        seconds: what finding all this took on the engine's thread.
    """

    block_size: int
    device: PoolOccupancy
    host: PoolOccupancy
    requests: tuple[RequestOccupancy, ...]
    resident_bytes: int
    seconds: float
