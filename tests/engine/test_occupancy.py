"""Looking at a running engine's blocks: what it says, and that it neither wakes an engine nor keeps it awake."""

import asyncio
import time

import pytest
from kit.engine import async_client
from kit.engine.async_client import OPTIONS, collect, is_asleep, run

from lullm import AsyncLLMEngine, EngineConfig
from lullm.errors import EngineDeadError


@pytest.fixture
def engine(qwen3_folder):
    options = OPTIONS | {"sleep_after": "500ms:1"}
    engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **options))
    yield engine
    asyncio.run(engine.shutdown(drain=False))


def test_who_holds_what_while_it_runs(engine):
    async def main():
        stream = engine.generate("hello world", async_client.PARAMS.replace(max_tokens=200), "mine")
        await anext(stream)
        found = await engine.occupancy(64)
        assert [request.request_id for request in found.requests] == ["mine"]
        assert found.device.num_blocks == 64 == len(found.device.cells) and any(found.device.cells)
        await stream.aclose()

    run(main())


def test_looking_does_not_keep_it_awake_and_does_not_wake_it(engine):
    async def main():
        await collect(engine)
        started = time.monotonic()
        while not is_asleep(engine):
            await engine.occupancy(64)
            await asyncio.sleep(0.02)
            assert time.monotonic() - started < 5, "looking has reset the clock"
        slept_s = engine.idle_s
        for _ in range(5):
            assert (await engine.occupancy(64)).device.num_blocks == 64
        assert is_asleep(engine) and engine.idle_s >= slept_s >= 0.5
        await engine.shutdown(drain=False)
        with pytest.raises(EngineDeadError):
            await engine.occupancy(64)

    run(main())
