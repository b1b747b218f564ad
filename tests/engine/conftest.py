"""Async engines that sleep, for the tests of it: what they should say, and a way to build them."""

import asyncio

import pytest
from kit.engine.async_client import OPTIONS, Observer
from kit.model.decisive import decisive_tokens

from lullm import AsyncLLMEngine, EngineConfig


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """Greedy tokens of an engine that never sleeps, by prompt."""
    options = OPTIONS | {"enable_sleep_mode": False}
    return decisive_tokens(qwen3_folder, 5, 60, **options)


@pytest.fixture
def build(qwen3_folder):
    engines = []

    def build_engine(**options):
        engines.append(AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **OPTIONS, **options)))
        engines[-1].observer = Observer()
        engines[-1].observe_sleep(engines[-1].observer)
        return engines[-1]

    yield build_engine
    for engine in engines:
        asyncio.run(engine.shutdown(drain=False))
