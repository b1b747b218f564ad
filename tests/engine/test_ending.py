"""The end of a client: `shutdown` may be awaited, left, run as a task, or called where no event loop runs."""

import asyncio
import warnings

import pytest
from kit.engine.async_client import collect, until

from lullm import AsyncEngineArgs, AsyncLLMEngine, EngineConfig, LLMEngine
from lullm.engine.process.client import ProcessClient
from lullm.errors import EngineDeadError, UnsupportedError

OPTIONS = {"max_model_len": 256, "num_gpu_blocks_override": 32, "threads": 1}


async def awaited(engine):
    await engine.shutdown(drain=False)


async def awaited_with_a_bound(engine):
    await asyncio.wait_for(engine.shutdown(timeout=3), 20)


async def as_a_task(engine):
    await asyncio.create_task(engine.shutdown())


async def left(engine):
    engine.shutdown()
    await until(lambda: has_ended(engine))


async def left_at_the_loops_end(engine):
    engine.shutdown()


def without_a_loop(engine):
    engine.shutdown()


def run_as_a_coroutine(engine):
    asyncio.run(engine.shutdown())


def has_ended(engine):
    """Whether the thread, or the process, has ended."""
    if isinstance(engine, ProcessClient):
        return engine._process._process.poll() is not None
    return not engine._thread._thread.is_alive()


ENDS = (awaited, awaited_with_a_bound, as_a_task, left, left_at_the_loops_end, without_a_loop, run_as_a_coroutine)
OF_A_PROCESS = (awaited, left, left_at_the_loops_end, without_a_loop)  # the others differ above both kinds


@pytest.mark.parametrize(
    ("kind", "end"),
    [*((AsyncLLMEngine, end) for end in ENDS), *((ProcessClient, end) for end in OF_A_PROCESS)],
    ids=lambda each: each.__name__,
)
def test_every_way_to_end_an_engine(kind, end, qwen3_folder):
    engine = kind(EngineConfig(model=str(qwen3_folder), **OPTIONS))

    async def main():
        assert await collect(engine)
        if asyncio.iscoroutinefunction(end):
            await end(engine)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # 'coroutine was never awaited'
        asyncio.run(main())
        if not asyncio.iscoroutinefunction(end):
            end(engine)
        if end is left_at_the_loops_end and kind is ProcessClient:  # the loop has ended, which would have waited
            engine._process._process.wait(20)
        assert has_ended(engine)
        with pytest.raises(EngineDeadError):
            engine.check_running()
        asyncio.run(engine.shutdown())  # once more


def test_vllms_ways_to_make_one(qwen3_folder):
    """Trainers make an engine from its config, with arguments that are none here."""
    config = AsyncEngineArgs(str(qwen3_folder), **OPTIONS).create_engine_config()
    engine = AsyncLLMEngine.from_vllm_config(vllm_config=config, usage_context="RLHF", stat_loggers=None)
    with pytest.raises(UnsupportedError, match="has the engine's numbers"):
        AsyncLLMEngine.from_vllm_config(config, stat_loggers=[print])

    async def main():
        assert await collect(engine)
        await engine.abort("x", internal=True)
        await engine.reset_prefix_cache(reset_connector=False)

    asyncio.run(main())
    engine.shutdown()
    engine = LLMEngine.from_vllm_config(config)
    assert engine.config.max_model_len == 256
    engine.shutdown()


def test_a_plain_call_lets_running_requests_end(qwen3_folder):
    engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **OPTIONS))

    async def main():
        running = asyncio.create_task(collect(engine))
        await until(lambda: engine.stats().num_running == 1)
        engine.shutdown()
        assert (await running)[-1].outputs[0].finish_reason == "length"
        await until(lambda: has_ended(engine))

    asyncio.run(main())
