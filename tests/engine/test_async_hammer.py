"""AsyncLLMEngine under load, sleeping by calls and by itself and waking for requests, all at once: no token is lost."""

import asyncio
import contextlib
import random

import pytest
from kit.engine.async_client import PARAMS, is_asleep, is_ending, run, tokens, until

from lullm.errors import EngineAsleepError, EngineDeadError, SleepCancelledError

COUNTS = ("ended", "left", "refused", "sleeps", "calls")


async def client(engine, number, expected, end, counts):
    """Generates until `end`; every request that is taken ends with its own tokens, unless the client leaves."""
    source = random.Random(number)
    loop = asyncio.get_running_loop()
    serial = 0
    while loop.time() < end:
        serial += 1
        prompt = source.choice(list(expected))
        length = source.choice((5, 20, 60))
        leaves = source.random() < 0.15
        stream = engine.generate(prompt, PARAMS.replace(max_tokens=length), f"{number}-{serial}")
        outputs = []
        try:
            async with contextlib.aclosing(stream):
                async for output in stream:
                    outputs.append(output)
                    if leaves and len(outputs) == 3:
                        break
        except EngineAsleepError:
            assert outputs == [], "refused at the first item only"
            counts["refused"] += 1
            await asyncio.sleep(0.005)
            continue
        if outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort":
            assert is_ending(engine)
            return
        found = tokens(outputs)
        assert found == expected[prompt][: len(found)], "no token of another request, none lost, none twice"
        assert len(found) == (3 if leaves else length)
        counts["left" if leaves else "ended"] += 1
        if source.random() < 0.3:
            await asyncio.sleep(source.random() * 0.2)


async def toggle(engine, end, counts):
    source = random.Random(0)
    loop = asyncio.get_running_loop()
    while loop.time() < end:
        await asyncio.sleep(source.random() * 0.15)
        tags = source.choice((None, None, ["kv_cache"], ["weights"]))
        with contextlib.suppress(SleepCancelledError, EngineAsleepError):
            await engine.sleep(source.choice((0, 1, 1, 2)), mode=source.choice(("keep", "keep", "wait")), tags=tags)
        counts["sleeps"] += 1
        await asyncio.sleep(source.random() * 0.05)
        if engine.sleep_state == "paused" or source.random() < 0.5:
            await engine.wake_up()
    await engine.wake_up()


def hammer(engine, expected, num_clients, seconds):
    counts = dict.fromkeys(COUNTS, 0)

    async def main():
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.timeout(seconds + 240), asyncio.TaskGroup() as group:
            for number in range(num_clients):
                group.create_task(client(engine, number, expected, end, counts))
            group.create_task(toggle(engine, end, counts))
        await until(lambda: engine.stats().num_used_blocks == 0)
        # Nothing that a request held is forgotten: the ladder finds the engine idle.
        await until(lambda: is_asleep(engine) and engine.next_sleep is None)

    asyncio.run(main())
    return counts


def test_clients_that_are_never_refused_while_another_toggles_sleep(build, expected):
    engine = build(sleep_after="20ms:1,60ms:disk")
    counts = hammer(engine, expected, num_clients=12, seconds=4)
    assert counts["ended"] > 12 and counts["sleeps"] > 3 and not counts["refused"], counts


@pytest.mark.slow
def test_fifty_clients_for_a_minute(build, expected):
    engine = build(sleep_after="20ms:1,60ms:disk")
    counts = hammer(engine, expected, num_clients=50, seconds=60)
    assert counts["ended"] > 100 and counts["left"] and counts["sleeps"] > 20 and not counts["refused"], counts


def test_few_clients_let_the_ladder_descend_between_them(build, expected):
    """The ladder's own races: requests that come as it falls asleep, and a shutdown among them."""
    engine = build(sleep_after="5ms:1,15ms:2")
    counts = dict.fromkeys(COUNTS, 0)

    async def visit(number):
        source = random.Random(number)
        with contextlib.suppress(EngineDeadError):
            while True:
                await asyncio.sleep(source.random() * 0.05)
                await client(engine, number, expected, asyncio.get_running_loop().time() + 0.001, counts)
        assert is_ending(engine)

    def num(event):
        return [seen[:2] for seen in engine.observer.events].count(event)

    async def main():
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(visit(number))
            await until(
                lambda: num(("slept", "idle")) > 5 and num(("woke", "request")) > 5 and counts["ended"] > 10, 60
            )
            await engine.shutdown(drain=True)

    asyncio.run(main())


def test_clients_that_are_refused_while_another_toggles_sleep(build, expected):
    engine, counts = build(), dict.fromkeys(COUNTS, 0)

    async def toggle(end):
        source = random.Random(0)
        loop = asyncio.get_running_loop()
        while loop.time() < end:
            await asyncio.sleep(source.random() * 0.15)
            await engine.sleep(source.choice((1, 2)), tags=source.choice((None, None, ["kv_cache"], ["weights"])))
            counts["sleeps"] += 1
            # A client may not come by in time: where steps leave the interpreter alone, the loop is never behind.
            with pytest.raises(EngineAsleepError):
                await anext(engine.generate("hello", PARAMS, f"asleep-{counts['sleeps']}"))
            await asyncio.sleep(source.random() * 0.02)
            await engine.wake_up()

    async def main():
        end = asyncio.get_running_loop().time() + 5
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(client(engine, number, expected, end, counts))
            group.create_task(toggle(end))
        await until(lambda: engine.stats().num_used_blocks == 0)

    run(main())
    assert counts["sleeps"] >= 10 and counts["ended"] >= 20, counts


def test_crossing_calls_and_a_shutdown_among_them(build, expected):
    """Every mode, level and tag from many tasks; each call answers or fails with an error of the tree."""
    engine, counts = build(), dict.fromkeys(COUNTS, 0)

    async def call_around(number):
        source = random.Random(number)
        while True:
            tags = source.choice((None, ["kv_cache"], ["weights"]))
            try:
                if source.random() < 0.4:
                    mode = source.choice(("keep", "wait"))
                    await asyncio.wait_for(
                        engine.sleep(source.choice((0, 1, 2)), mode=mode, tags=tags), source.random()
                    )
                else:
                    await engine.wake_up(source.choice((None, None, tags)))
                counts["calls"] += 1
            except (SleepCancelledError, EngineAsleepError, TimeoutError):
                pass
            except EngineDeadError:
                return
            await asyncio.sleep(source.random() * 0.05)

    async def generate(number):
        with contextlib.suppress(EngineDeadError):
            await client(engine, number, expected, asyncio.get_running_loop().time() + 60, counts)
        assert is_ending(engine)

    async def main():
        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(generate(number))
            for number in range(6):
                group.create_task(call_around(number))
            await asyncio.sleep(2.5)
            await engine.shutdown(drain=True)

    run(main())
    assert counts["calls"] > 20 and counts["ended"], counts
