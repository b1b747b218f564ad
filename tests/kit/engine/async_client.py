"""What tests of the async engine share: an observer of its sleep, and the ways to ask and to wait."""

import asyncio

from lullm import SamplingParams
from lullm.engine.thread.mailbox import EngineCall, ThreadState
from lullm.types.sampling_params import OutputKind

OPTIONS = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 64, "enable_sleep_mode": True}
PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, output_kind=OutputKind.DELTA)


class Observer:
    """Writes down what it hears."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        if event.slept is not None:
            self.events.append(("slept", event.cause, event.slept.level))
        elif event.woke is not None:
            self.events.append(("woke", event.cause, event.woke.tags))
        else:
            self.events.append((f"{event.failed}_failed", event.cause))


def tokens(outputs):
    return [t for output in outputs for c in output.outputs for t in c.token_ids]


async def collect(engine, prompt="hello world", params=PARAMS, request_id="x", **options):
    return [output async for output in engine.generate(prompt, params, request_id, **options)]


def is_asleep(engine):
    """`AsyncLLMEngine.is_sleeping` without waiting."""
    return engine.sleep_state != "awake"


def is_ending(engine):
    """Whether a shutdown has begun."""
    return engine._threaded.mailbox.state is not ThreadState.RUNNING


async def until(condition, limit_s=20.0):
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)


def run(main):
    async def bounded():
        async with asyncio.timeout(60):
            await main

    asyncio.run(bounded())


async def on_thread(engine, function):
    """The result of `function`, run on the engine's thread as its calls are."""
    call = EngineCall(function)
    engine._entry.send_arrived()
    engine._threaded.mailbox.send(call.run)
    return await asyncio.wrap_future(call.answer)
