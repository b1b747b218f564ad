"""Sends requests to a server: as a Poisson process, with a bound on concurrent requests, or both."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from lullm.cli.bench.stream import Sample, Target, ask

_WORDS = (
    *("river", "stone", "garden", "morning", "letter", "window", "market", "summer", "paper", "music", "doctor"),
    *("island", "engine", "silver", "forest", "bridge", "winter", "picture", "harbor", "kitchen", "village"),
)


def prompts_of(num: int, num_words: int, seed: int, num_shared: int = 0) -> list[str]:
    """Prompts of random words, about a token each; the first `num_shared` words are equal in all."""
    rng = random.Random(seed)
    shared = rng.choices(_WORDS, k=num_shared)
    return [" ".join([*shared, *rng.choices(_WORDS, k=max(num_words - num_shared, 0))]) for _ in range(num)]


def arrivals(num: int, rate: float, seed: int) -> list[float]:
    """Seconds at which requests arrive: a Poisson process of `rate` requests per second; infinite: all at once."""
    if rate == float("inf"):
        return [0.0] * num
    rng, times, now = random.Random(seed), [], 0.0
    for _ in range(num):
        times.append(now)
        now += rng.expovariate(rate)
    return times


async def send_all(
    target: Target,
    bodies: Sequence[dict[str, Any]],
    times: Sequence[float],
    concurrency: int | None,
) -> list[Sample]:
    """Send each body at its time, but at most `concurrency` at once. A late one counts from its sending."""
    gate = asyncio.Semaphore(concurrency or len(bodies) or 1)
    loop = asyncio.get_running_loop()
    started = loop.time()

    async def send(body: dict[str, Any], due_s: float) -> Sample:
        await asyncio.sleep(max(started + due_s - loop.time(), 0.0))
        async with gate:
            return await ask(target, body)

    return await asyncio.gather(*(send(body, due_s) for body, due_s in zip(bodies, times, strict=True)))
