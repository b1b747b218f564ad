"""An engine in a real process: the same answers, sleep in the middle, and what becomes of it when somebody dies."""

import asyncio
import os
import signal
import sys
import time

import pytest
from kit.engine.async_client import OPTIONS, Observer, until
from kit.model.decisive import decisive_tokens
from kit.running import running

from lullm.config.engine import EngineConfig
from lullm.engine.process.client import ProcessClient
from lullm.errors import (
    CacheSizeError,
    EngineAsleepError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    UnsupportedError,
)
from lullm.types.request import CallerRequest
from lullm.types.sampling_params import OutputKind, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True, output_kind=OutputKind.DELTA)


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """Greedy tokens of an engine in this process, by prompt."""
    options = OPTIONS | {"enable_sleep_mode": False}
    return decisive_tokens(qwen3_folder, 3, 200, **options)


@pytest.fixture(scope="module")
def client(qwen3_folder):
    found = ProcessClient(EngineConfig(model=str(qwen3_folder), threads=1, **OPTIONS))
    yield found
    asyncio.run(found.shutdown(drain=False))


def is_alive(pid):
    """Whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def collect(client, prompt, params=GREEDY, request_id="r"):
    request = await client.prepare(CallerRequest(request_id, prompt, params))
    return [output async for output in client.stream(request)]


def tokens(outputs):
    return [token for output in outputs for completion in output.outputs for token in completion.token_ids]


def test_answers_equal_those_of_an_engine_here_also_with_a_sleep_in_the_middle(client, expected):
    observer = Observer()
    client.observe_sleep(observer)

    async def main():
        asked = [asyncio.create_task(collect(client, p, request_id=f"r{n}")) for n, p in enumerate(expected)]
        await until(lambda: client.stats().generation_tokens_total > 20)
        report = await client.sleep(1)
        assert report.tags == ("weights", "kv_cache") == client.sleeping_tags and client.sleep_state != "awake"
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in asked), "what is kept goes on after waking"
        with pytest.raises(EngineAsleepError):
            await collect(client, "hello", request_id="late")
        assert (await client.wake_up()).tags == report.tags and client.sleep_state == "awake"
        for task, wanted in zip(asked, expected.values(), strict=True):
            assert tokens(await task) == wanted

    asyncio.run(main())
    assert observer.events == [("slept", "call", 1), ("woke", "call", ("weights", "kv_cache"))]
    assert client.stats().num_running == 0 and client.stats().finished_total["length"] == len(expected)


def test_every_kind_of_output(client):
    async def main():
        params = SamplingParams(n=3, seed=5, max_tokens=12, logprobs=2, prompt_logprobs=1)
        kinds = {kind: await collect(client, "a b c", params.replace(output_kind=kind)) for kind in OutputKind}
        [final] = kinds[OutputKind.FINAL_ONLY]
        last = kinds[OutputKind.CUMULATIVE][-1]
        assert last.outputs == final.outputs and last.prompt_logprobs == final.prompt_logprobs
        first, *rest = kinds[OutputKind.DELTA]
        for output in rest:
            first.absorb(output)
        assert sorted(first.outputs, key=lambda each: each.index) == final.outputs
        assert (final.prompt, final.prompt_token_ids) == ("a b c", last.prompt_token_ids)
        assert final.metrics.arrival_time < final.metrics.first_token_time < time.monotonic(), "one clock"

    asyncio.run(main())


def test_a_reader_that_goes_frees_its_blocks(client):
    async def main():
        stream = client.stream(await client.prepare(CallerRequest("r", "hello", GREEDY.replace(max_tokens=200))))
        await anext(stream)
        assert client.stats().num_running == 1
        picture = await client.occupancy(64)
        assert [each.request_id for each in picture.requests] == ["r"] and any(picture.device.cells)
        await stream.aclose()
        await until(lambda: client.stats().num_running == client.stats().num_used_blocks == 0)

    asyncio.run(main())


def test_errors_keep_their_class(client):
    async def main():
        with pytest.raises(InvalidRequestError) as info:
            await collect(client, "hello", GREEDY.replace(n=500))
        assert "sequences" in str(info.value), "refused by the engine's thread"
        stream = client.stream(await client.prepare(CallerRequest("twin", "hello", GREEDY)))
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="twin"):
            await collect(client, "hello", request_id="twin")
        await stream.aclose()
        with pytest.raises(InvalidRequestError) as info:
            await client.sleep(3)
        assert info.value.param == "level"
        with pytest.raises(UnsupportedError, match="only a function's name"):
            await client.collective_rpc(lambda worker: 0)
        assert await client.collective_rpc(print) == [None], "a function that the other process finds"
        with pytest.raises(InvalidRequestError, match="plain data or tensors"):
            await client.collective_rpc(print, args=(object(),))
        with pytest.raises(InvalidRequestError, match="cannot be called by name"):
            await client.collective_rpc("shutdown")
        assert await client.reset_prefix_cache(reset_running_requests=True) is True
        [found] = await client.collective_rpc("resident_bytes")
        assert found["weights"] > 0

    asyncio.run(main())


def test_a_failed_start_says_why_and_leaves_nothing(qwen3_folder):
    config = EngineConfig(model=str(qwen3_folder), threads=1, **OPTIONS | {"max_model_len": 500}, block_size=4)
    with pytest.raises(CacheSizeError, match="lower"):
        ProcessClient(config)
    with pytest.raises(ModelLoadError, match="nowhere"):
        ProcessClient(EngineConfig(model="/nowhere"))


def test_the_death_of_the_engine_is_told_to_all_at_once(qwen3_folder):
    client = ProcessClient(EngineConfig(model=str(qwen3_folder), threads=1, **OPTIONS))

    async def main():
        stream = client.stream(await client.prepare(CallerRequest("r", "hello", GREEDY.replace(max_tokens=200))))
        await anext(stream)
        assert client.stats().num_running == 1 and client.stats().num_used_blocks
        num_prompt_tokens = client.stats().prompt_tokens_total
        os.kill(client._process.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            async for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            client.check_running()
        stats = client.stats()
        assert not (stats.num_running or stats.num_used_blocks), "what failed with the engine runs no more"
        assert stats.prompt_tokens_total == num_prompt_tokens > 0 and client.next_sleep is None
        started = time.monotonic()
        await client.shutdown()
        assert time.monotonic() - started < 1

    asyncio.run(main())
    assert not is_alive(client._process.pid)


PARENT = """
import sys, time
from lullm.config.engine import EngineConfig
from lullm.engine.process.client import ProcessClient
client = ProcessClient(EngineConfig(model=sys.argv[1], threads=1, load_format="dummy", num_gpu_blocks_override=64))
assert "torch" not in sys.modules, "the callers' process loads no torch"
print(client._process.pid, flush=True)
time.sleep(60)
"""


def test_the_death_of_the_parent_ends_the_engine(qwen3_folder):
    command = [sys.executable, "-c", PARENT, str(qwen3_folder)]
    with running(command) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(pid, signal.SIGTERM)  # a supervisor's, to the whole group: it is for the parent
        os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
        assert is_alive(pid)
        parent.kill()
    end = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < end, "left behind"
        time.sleep(0.01)
