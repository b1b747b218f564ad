"""Feed: the page's data of one engine, as one stream of snapshots for all open pages that show it.

A snapshot is taken while a page waits for one, and at most once per PERIOD_S; without a page it costs nothing. It has
no text: requests are named by a part of their ids.
"""

import asyncio
import base64
import dataclasses
import time
from collections.abc import AsyncGenerator
from typing import Any

import lullm
from lullm.config.generation import LLAMA_CPP, left_open
from lullm.errors import EngineDeadError
from lullm.server.context import ServerContext
from lullm.server.sse import event
from lullm.types.monitor.occupancy import Occupancy, PoolOccupancy

PERIOD_S = 0.4
MAX_PERIOD_S = 2.0
MOST_SHARE = 0.01
"""Largest share of the engine's time for snapshots; a pool that takes longer is read less often."""
MAX_CELLS = 4096
_ID_CHARS = 6


def short_id(request_id: str) -> str:
    """`'chatcmpl-3fa94b...-12'` -> `'3fa94b-12'`: enough to tell requests apart."""
    head, _, serial = request_id.rpartition("-")
    head = head.partition("-")[2] or head
    return f"{head[:_ID_CHARS]}-{serial[:_ID_CHARS]}" if head else request_id[:_ID_CHARS]


class Feed:
    """The stream of one model. Lives on the server's event loop."""

    def __init__(self, context: ServerContext):
        self._context = context
        self._engine = context.engine
        self._period_s = PERIOD_S
        self._next: asyncio.Task[bytes | None] | None = None
        self._asked: asyncio.Task[Occupancy] | None = None
        self._occupancy: Occupancy | None = None

    async def events(self, has_admin: bool) -> AsyncGenerator[bytes, None]:
        """The constant facts, then snapshots until the engine ends.

        Args:
            has_admin: the sleep endpoints answer at the page's address.
        """
        yield event({"about": self._about(has_admin)})
        snapshot: bytes | None = await self._snapshot(0.0)
        while snapshot is not None:
            yield snapshot
            # A late reader gets the newest one: there is no queue.
            if self._next is None or self._next.done():
                self._next = asyncio.create_task(self._snapshot(self._period_s))
            snapshot = await asyncio.shield(self._next)

    async def _snapshot(self, pause_s: float) -> bytes | None:
        """The snapshot after a pause; None: the engine has ended."""
        await asyncio.sleep(pause_s)
        try:
            self._engine.check_running()
            await self._look()
        except EngineDeadError:
            return None
        return event(self._facts())

    async def _look(self) -> None:
        """Update the occupancy. While a long step keeps the engine's thread busy, the last one stays."""
        if self._asked is None:
            self._asked = asyncio.create_task(self._engine.occupancy(MAX_CELLS))
        asked = self._asked
        await asyncio.wait({asked}, timeout=PERIOD_S)
        if asked.done():
            if self._asked is asked:  # readers who begin at the same time share one update
                self._asked = None
            self._occupancy = asked.result()
            self._period_s = min(max(PERIOD_S, self._occupancy.seconds / MOST_SHARE), MAX_PERIOD_S)

    def _about(self, has_admin: bool) -> dict[str, Any]:
        config = self._engine.config
        return {
            "version": lullm.__version__,
            "model": self._context.model_name,
            "models": [each.model_name for each in self._context.house.models],
            "max_model_len": config.max_model_len,
            "max_logprobs": config.max_logprobs,
            "sampling": left_open(LLAMA_CPP, self._engine.stated_params),
            "has_sleep_mode": has_admin,
            "has_admin_key": bool(self._context.options.admin_keys),
        }

    def _facts(self) -> dict[str, Any]:
        engine, stats = self._engine, self._engine.stats()
        rung, fleet = engine.next_sleep, self._context.house.fleet
        counters = dataclasses.asdict(stats)
        del counters["token_gaps"]  # a histogram, which the page does not draw
        # JSON has no keys of two parts
        counters["preemptions_total"] = stats.num_preemptions
        return {
            "time_s": time.monotonic(),
            "stats": counters,
            "latency": dataclasses.asdict(self._context.metrics.latencies),
            "sleep": {
                "state": engine.sleep_state,
                "tags": list(engine.sleeping_tags),
                "idle_s": engine.idle_s,
                "next": None if rung is None else {"level": rung[0].level, "in_s": rung[1]},
            },
            "is_draining": self._context.house.draining,
            "models": {} if fleet is None else fleet.states(),
        } | (_picture(self._occupancy) if self._occupancy else {})


def _picture(occupancy: Occupancy) -> dict[str, Any]:
    return {
        "block_size": occupancy.block_size,
        "resident_bytes": occupancy.resident_bytes,
        "device": _pool(occupancy.device),
        "host": _pool(occupancy.host),
        "requests": [
            dataclasses.asdict(request) | {"request_id": short_id(request.request_id)} for request in occupancy.requests
        ],
    }


def _pool(pool: PoolOccupancy) -> dict[str, Any]:
    """The free cells at the end are left out, since most of a pool is usually free."""
    return {
        "num_blocks": pool.num_blocks,
        "blocks_per_cell": pool.blocks_per_cell,
        "num_cells": len(pool.cells),
        "cells": base64.b64encode(pool.cells.rstrip(b"\0")).decode(),
    }
