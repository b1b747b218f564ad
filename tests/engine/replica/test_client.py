"""Two engines behind one client: the same tokens as one, calls on all, and one that is killed."""

import asyncio
import contextlib
import os
import signal

import pytest
from kit.engine.async_client import OPTIONS, Observer, until

from lullm import LLM, AsyncEngineArgs, AsyncLLMEngine
from lullm.engine.replica.client import ReplicaClient
from lullm.errors import CacheSizeError, EngineDeadError, InvalidRequestError, SleepError
from lullm.types.request import CallerRequest
from lullm.types.sampling_params import OutputKind, SamplingParams

DRAWN = SamplingParams(n=4, temperature=0.8, seed=11, max_tokens=40, ignore_eos=True, output_kind=OutputKind.DELTA)
FINAL = DRAWN.replace(output_kind=OutputKind.FINAL_ONLY)
SHARED = "the quick brown fox jumps over the lazy dog and runs far away from all of the others "
PROMPTS = [*(SHARED + end for end in ("a", "b", "c")), "hello world", "a b c", "one two three"]


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """What one engine draws for each prompt."""
    with LLM(str(qwen3_folder), **OPTIONS | {"num_gpu_blocks_override": 256}) as llm:
        outputs = llm.generate(PROMPTS, DRAWN, use_tqdm=False)
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def build(qwen3_folder):
    with contextlib.ExitStack() as stack:

        def build_client(**options):
            options = OPTIONS | {"num_gpu_blocks_override": 256, "threads": 1, "data_parallel_size": 2} | options
            client = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(str(qwen3_folder), **options))
            stack.callback(lambda: asyncio.run(client.shutdown(drain=False)))
            return client

        yield build_client


@pytest.fixture(scope="module")
def client(build):
    return build()


async def tokens(client, prompt, request_id, params=DRAWN):
    request = await client.prepare(CallerRequest(request_id, prompt, params))
    found = [[] for _ in range(params.n)]
    async for output in client.stream(request):
        for completion in output.outputs:
            found[completion.index] += completion.token_ids
    return found


def test_tokens_equal_those_of_one_engine_with_a_sleep_in_the_middle(client, expected):
    observer = Observer()
    client.observe_sleep(observer)

    async def main():
        asked = [asyncio.create_task(tokens(client, prompt, f"r{n}")) for n, prompt in enumerate(PROMPTS)]
        await until(lambda: all(replica.stats().num_running for replica in client._replicas))  # both work
        await until(lambda: client.stats().generation_tokens_total > 40)
        picture = await client.occupancy(64)
        assert sorted(each.request_id for each in picture.requests) == [f"r{n}" for n in range(len(PROMPTS))]
        assert picture.device.num_blocks == 512
        report = await client.sleep(1)
        assert report.tags == ("weights", "kv_cache") == client.sleeping_tags
        assert client.sleep_state == "weights_offloaded" and report.freed_bytes > 0
        assert (await client.wake_up()).tags == report.tags and client.sleep_state == "awake"
        assert await asyncio.gather(*asked) == expected
        again = await asyncio.gather(*(tokens(client, prompt, f"again{n}") for n, prompt in enumerate(PROMPTS)))
        assert again == expected

    asyncio.run(main())
    assert [event[0] for event in observer.events] == ["slept", "slept", "woke", "woke"]
    assert client.stats().finished_total["length"] == 2 * len(PROMPTS)


def test_a_shared_prefix_stays_with_its_engine(client):
    async def main():
        assert await client.reset_prefix_cache(reset_running_requests=True)
        before = client.stats().prefix_cache_hits_total
        for number in range(6):
            await tokens(client, SHARED + str(number), f"p{number}", DRAWN.replace(n=1, max_tokens=2))
        return client.stats().prefix_cache_hits_total - before

    assert asyncio.run(main()) >= 5 * 16, "the first one computes it, the others find it"


def test_calls_reach_all_and_errors_are_the_callers(client):
    async def main():
        assert len(await client.collective_rpc("resident_bytes")) == 2
        stream = client.stream(await client.prepare(CallerRequest("twin", "hello", DRAWN)))
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="'twin' is already in use"):
            await anext(client.stream(await client.prepare(CallerRequest("twin", "hello", DRAWN))))
        await stream.aclose()
        with pytest.raises(InvalidRequestError, match="cannot be called by name") as info:
            await client.collective_rpc("shutdown")
        assert "engine 0" not in str(info.value)
        assert (await client.explain_sleep(1)).frees_bytes > 0

    asyncio.run(main())


def test_an_async_engine_has_the_same_methods(client, expected):
    assert isinstance(client, ReplicaClient)
    own = {name for name in dir(AsyncLLMEngine) if not name.startswith("_")}
    assert own - {"from_engine_args", "from_vllm_config"} <= set(dir(client)), "all but the two ways to make one"

    async def main():
        *_, last = [output async for output in client.generate(PROMPTS[0], FINAL, "whole")]
        assert [completion.token_ids for completion in last.outputs] == expected[0]
        assert not await client.is_sleeping() and client.get_num_unfinished_requests() == 0
        stream = client.generate("hello", FINAL.replace(output_kind=OutputKind.DELTA), "broken-off")
        await anext(stream)
        assert client.get_num_unfinished_requests() == 1
        await client.abort("broken-off")
        *_, last = [output async for output in stream]
        assert last.outputs[0].finish_reason == "abort"
        assert await client.update_weights([]) == 0
        await client.check_health()
        assert (await client.get_tokenizer()).decode([5]) == client.tokenizer.decode([5])

    asyncio.run(main())


def test_all_sleep_or_none(client, monkeypatch):
    async def fail(level=1, **arguments):
        raise SleepError("No space left on device")

    async def main():
        with monkeypatch.context() as patch:
            patch.setattr(client._replicas[1], "sleep", fail)
            with pytest.raises(SleepError, match="engine 1 of 2.*No space left"):
                await client.sleep(1)
        assert client.sleep_state == "awake" == client._replicas[0].sleep_state
        await client._replicas[0].sleep(1)
        with monkeypatch.context() as patch:
            patch.setattr(client._replicas[1], "sleep", fail)
            with pytest.raises(SleepError):
                await client.sleep(2)
        assert client._replicas[0].sleep_state != "awake", "as it was before"
        await client.wake_up()
        assert client._replicas[0].stats().num_blocks

    asyncio.run(main())


def test_a_killed_engine_fails_its_own_requests_and_turns_health_red(build):
    client = build()

    async def main():
        endless = DRAWN.replace(n=1, max_tokens=200)
        streams = [client.stream(await client.prepare(CallerRequest(f"r{n}", "hello", endless))) for n in range(2)]
        for stream in streams:
            await anext(stream)
        os.kill(client._replicas[1]._process.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="engine 1 of 2.*SIGKILL"):
            async for _ in streams[1]:
                pass
        *_, last = [output async for output in streams[0]]
        assert last.finished and last.outputs[0].finish_reason == "length"
        with pytest.raises(EngineDeadError, match="engine 1 of 2"):
            client.check_running()
        with pytest.raises(EngineDeadError, match="engine 1 of 2"):
            await client.prepare(CallerRequest("late", "hello", DRAWN))

    asyncio.run(main())


def test_a_start_that_fails_leaves_none_behind(build):
    with pytest.raises(CacheSizeError):
        build(num_gpu_blocks_override=4)
