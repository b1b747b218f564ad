"""Occupancy: the requests that hold the blocks of the KV cache at one moment, as plain data for live pictures.

`lullm.kv.snapshot` has every detail of every block and takes longer; this is quick, and has a bounded size.
"""

from dataclasses import dataclass
from typing import Literal

FREE_CELL = 0
CACHED_CELL = 1
FIRST_OWNER_CELL = 2
SHARED_CELL = 128
"""Added to an owner's number: several sequences hold the block."""
MAX_OWNERS = SHARED_CELL - FIRST_OWNER_CELL
"""Requests that have a number of their own. Later ones are not named, and share the last number."""

QueueName = Literal["running", "swapped", "waiting"]


@dataclass(frozen=True, slots=True)
class PoolOccupancy:
    """One pool as a row of cells, a byte each, of `blocks_per_cell` blocks (the last one perhaps of fewer).

    A cell shows the highest number among its blocks: FREE_CELL, CACHED_CELL (no sequence holds it, but its content can
    be found), or FIRST_OWNER_CELL + the owner's index in `Occupancy.requests`; shared blocks add SHARED_CELL.
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
        seconds: time on the engine's thread to find all this.
    """

    block_size: int
    device: PoolOccupancy
    host: PoolOccupancy
    requests: tuple[RequestOccupancy, ...]
    resident_bytes: int
    seconds: float
