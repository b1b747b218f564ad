"""AsyncLLMEngine under load that sleeps by itself, by calls, and wakes for requests, all at once: no token is lost."""

import asyncio
import contextlib
import random

import pytest
from async_client import PARAMS, tokens, until

from lullm.errors import EngineAsleepError, EngineDeadError, SleepCancelledError


async def client(engine, number, expected, end, counts):
    """Generates until `end`; every request ends with its own tokens, asleep or not, unless the client leaves."""
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
        async with contextlib.aclosing(stream):
            async for output in stream:
                outputs.append(output)
                if leaves and len(outputs) == 3:
                    break
        if outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort":
            assert engine._thread._is_closing
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
            await engine.sleep(source.choice((0, 1, 1, 2)), source.choice(("keep", "keep", "wait")), tags)
        counts["sleeps"] += 1
        await asyncio.sleep(source.random() * 0.05)
        if engine.sleep_state == "paused" or source.random() < 0.5:
            await engine.wake_up()
    await engine.wake_up()


def hammer(engine, expected, num_clients, seconds):
    counts = dict.fromkeys(("ended", "left", "sleeps"), 0)

    async def main():
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.timeout(seconds + 240), asyncio.TaskGroup() as group:
            for number in range(num_clients):
                group.create_task(client(engine, number, expected, end, counts))
            group.create_task(toggle(engine, end, counts))
        await until(lambda: engine.stats().num_used_blocks == 0)
        # Nothing that a request held is forgotten: the ladder finds the engine idle.
        await until(lambda: engine.is_sleeping and engine.next_sleep is None)

    asyncio.run(main())
    return counts


def test_clients_that_are_never_refused_while_another_toggles_sleep(build, expected):
    engine = build(sleep_after="20ms:1,60ms:disk")
    counts = hammer(engine, expected, num_clients=12, seconds=4)
    assert counts["ended"] > 12 and counts["sleeps"] > 3, counts


@pytest.mark.slow
def test_fifty_clients_for_a_minute(build, expected):
    engine = build(sleep_after="20ms:1,60ms:disk")
    counts = hammer(engine, expected, num_clients=50, seconds=60)
    assert counts["ended"] > 100 and counts["left"] and counts["sleeps"] > 20, counts


def test_few_clients_let_the_ladder_descend_between_them(build, expected):
    """The ladder's own races: requests that come as it falls asleep, and a shutdown among them."""
    engine = build(sleep_after="5ms:1,15ms:2")
    counts = dict.fromkeys(("ended", "left"), 0)

    async def visit(number):
        source = random.Random(number)
        with contextlib.suppress(EngineDeadError):
            while True:
                await asyncio.sleep(source.random() * 0.05)
                await client(engine, number, expected, asyncio.get_running_loop().time() + 0.001, counts)
        assert engine._thread._is_closing

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
