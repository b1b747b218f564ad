"""Engines for tests of sleep and of hibernation: what they should say, and ways to build them."""

import asyncio

import pytest
from kit.engine.async_client import OPTIONS, Observer
from kit.model.decisive import decisive_tokens

from lullm import LLM, AsyncLLMEngine, EngineConfig


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


@pytest.fixture
def opener(request, qwen3_folder):
    """Builds an `LLM` with the OPTIONS of the test's module, and others; all are shut down at the end."""
    opened = []

    def open_engine(model=qwen3_folder, **options):
        opened.append(LLM(str(model), **request.module.OPTIONS | options))
        return opened[-1]

    yield open_engine
    for llm in opened:
        llm.shutdown()
