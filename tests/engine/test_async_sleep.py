"""AsyncLLMEngine asleep: streams pause and go on, calls cross each other, and nobody waits forever."""

import asyncio
import functools
import threading
import time

import pytest
from kit.engine import async_client
from kit.engine.async_client import OPTIONS, is_asleep, run, tokens, until
from kit.engine.parts import break_steps, executor_of, weights_filled_by

from lullm import AsyncLLMEngine, EngineConfig
from lullm.errors import (
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    InvalidRequestError,
    SleepCancelledError,
    SleepError,
    WakeUpError,
)

PARAMS = async_client.PARAMS.replace(max_tokens=60)
collect = functools.partial(async_client.collect, params=PARAMS)


@pytest.fixture
def engine(build):
    return build()


@pytest.fixture
def slow_steps(engine, monkeypatch):
    """Requests are not over before the test's next call has come."""
    step = engine._engine.step

    def slow_step():
        time.sleep(0.003)
        return step()

    monkeypatch.setattr(engine._engine, "step", slow_step)


async def start(engine, params=PARAMS, request_id="x"):
    """A stream and its first output."""
    stream = engine.generate("hello world", params, request_id)
    return stream, await anext(stream)


async def begin_waiting_sleep(engine):
    """A sleep of mode 'wait' that the engine has heard of; a task that was only created may not have run yet."""
    sleeping = asyncio.create_task(engine.sleep(1, mode="wait"))
    await until(lambda: engine._threaded.sleep_control._waiting_sleeps)
    return sleeping


async def assert_paused(engine):
    """The thread takes no step, and waits without spinning."""
    num_steps = engine.stats().steps_total
    await asyncio.sleep(0.05)
    assert engine.stats().steps_total == num_steps


@pytest.mark.parametrize("level", [0, 1, 2])
def test_kept_streams_pause_and_go_on_with_the_next_token(engine, expected, level):
    async def main():
        tasks = [asyncio.create_task(collect(engine, prompt, request_id=prompt)) for prompt in expected]
        await until(lambda: engine.stats().generation_tokens_total > 20)
        report = await engine.sleep(level)
        assert is_asleep(engine) and engine.sleeping_tags == report.tags == (("weights", "kv_cache") if level else ())
        await assert_paused(engine)
        assert not any(task.done() for task in tasks)
        with pytest.raises(EngineAsleepError, match="wake_up"):
            await collect(engine)
        assert (await engine.sleep(level)).tags == () and await engine.is_sleeping()
        if level:
            await engine.wake_up(["weights"])
            assert is_asleep(engine) and engine.sleeping_tags == ("kv_cache",)
            await assert_paused(engine)
        await engine.wake_up()
        await engine.wake_up()
        assert not is_asleep(engine)
        for prompt, task in zip(expected, tasks, strict=True):
            assert tokens(await task) == expected[prompt]
        assert engine.stats().num_used_blocks == 0

    run(main())


@pytest.mark.usefixtures("slow_steps")
def test_mode_wait_lets_requests_end_and_takes_no_new_ones(engine, expected):
    async def main():
        stream, first = await start(engine)
        sleeping = await begin_waiting_sleep(engine)
        outputs = [first, await anext(stream)]
        with pytest.raises(EngineAsleepError, match="going to sleep"):
            await collect(engine, request_id="late")
        outputs += [output async for output in stream]
        assert tokens(outputs) == expected["hello world"]
        assert (await sleeping).tags == ("weights", "kv_cache") and is_asleep(engine)
        assert (await engine.sleep(1, mode="wait")).tags == ()

    run(main())


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize("overtaken_by", ["wake_up", "sleep", "cancel"])
def test_a_waiting_sleep_is_cancelled(engine, expected, overtaken_by):
    async def main():
        stream, first = await start(engine)
        sleeping = await begin_waiting_sleep(engine)
        await anext(stream)
        if overtaken_by == "cancel":
            sleeping.cancel()
        elif overtaken_by == "sleep":
            await engine.sleep(1, mode="keep")
        else:
            await engine.wake_up()
        with pytest.raises(asyncio.CancelledError if overtaken_by == "cancel" else SleepCancelledError):
            await sleeping
        assert is_asleep(engine) == (overtaken_by == "sleep")
        if is_asleep(engine):
            with pytest.raises(EngineAsleepError):  # what is kept cannot end
                await engine.sleep(1, mode="wait")
        await engine.wake_up()
        assert tokens(await collect(engine, request_id="new")) == expected["hello world"]
        assert len([output async for output in stream]) == 58
        assert not is_asleep(engine)

    run(main())


@pytest.mark.usefixtures("slow_steps")
def test_mode_abort_ends_requests_with_an_output(engine):
    async def main():
        stream, _ = await start(engine)
        await engine.sleep(1, mode="abort")
        rest = [output async for output in stream]
        assert rest[-1].finished and rest[-1].outputs[0].finish_reason == "abort"
        await engine.wake_up()
        stream, _ = await start(engine)
        await engine.sleep(0)
        await engine.sleep(1, mode="abort")  # kept by the first, not by the second
        assert [output async for output in stream][-1].outputs[0].finish_reason == "abort"
        assert engine.stats().num_used_blocks == 0

    run(main())


@pytest.mark.usefixtures("slow_steps")
def test_a_client_that_leaves_a_sleeping_engine(engine, expected):
    async def main():
        streams = [(await start(engine, request_id=name))[0] for name in ("gone", "stays")]
        await engine.sleep(1)
        held = engine.stats().num_used_blocks
        await streams[0].aclose()
        await until(lambda: engine.stats().num_used_blocks < held)
        await engine.wake_up()
        assert tokens([output async for output in streams[1]])[-20:] == expected["hello world"][-20:]
        assert engine.stats().finished_total["abort"] == 1 and engine.stats().num_used_blocks == 0

    run(main())


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("level", [0, 1])
def test_shutdown_while_asleep(engine, drain, level):
    async def main():
        stream, _ = await start(engine)
        await engine.sleep(level)
        await engine.shutdown(drain)
        assert [output async for output in stream][-1].outputs[0].finish_reason == "abort"
        for call in (engine.sleep(), engine.wake_up(), engine.reset_prefix_cache(), collect(engine)):
            with pytest.raises(EngineDeadError):
                await call

    run(main())


@pytest.mark.usefixtures("slow_steps")
@pytest.mark.parametrize("drain", [False, True])
def test_shutdown_cancels_a_waiting_sleep(engine, drain):
    async def main():
        stream, _ = await start(engine, PARAMS.replace(max_tokens=200))
        sleeping = await begin_waiting_sleep(engine)
        await anext(stream)
        await engine.shutdown(drain)
        with pytest.raises(EngineDeadError, match="shut down"):
            await sleeping
        assert [output async for output in stream][-1].outputs[0].finish_reason == ("length" if drain else "abort")

    run(main())


@pytest.mark.usefixtures("slow_steps")
def test_a_failed_step_fails_a_waiting_sleep(engine, caplog):
    async def main():
        stream, _ = await start(engine, PARAMS.replace(max_tokens=200))
        sleeping = await begin_waiting_sleep(engine)
        await anext(stream)
        break_steps(engine)
        with pytest.raises(EngineDeadError, match="died"):
            await sleeping
        with pytest.raises(EngineDeadError, match="died"):
            async for _ in stream:
                pass

    run(main())


def test_misuse(engine, qwen3_folder):
    async def main():
        stream, _ = await start(engine, PARAMS.replace(max_tokens=200))
        for mode in ("keep", "wait", "abort"):
            for arguments, param in (({"level": 3}, "level"), ({"level": True}, "level"), ({"tags": ["x"]}, "tags")):
                with pytest.raises(InvalidRequestError) as error:
                    await engine.sleep(mode=mode, **arguments)
                assert error.value.param == param
        with pytest.raises(InvalidRequestError, match="mode"):
            await engine.sleep(1, mode="later")
        with pytest.raises(TypeError):
            await engine.sleep(1, "wait")
        with pytest.raises(InvalidRequestError):
            await engine.wake_up(["x"])
        assert not is_asleep(engine)
        await anext(stream)
        await stream.aclose()

    run(main())
    other = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **OPTIONS | {"enable_sleep_mode": False}))

    async def without_sleep_mode():
        with pytest.raises(ConfigError, match="enable_sleep_mode"):
            await other.sleep()
        await other.wake_up()
        await other.shutdown()

    run(without_sleep_mode())


@pytest.mark.usefixtures("slow_steps")
def test_failures_are_told_and_the_engine_lives(engine, expected, monkeypatch):
    async def main():
        stream, first = await start(engine)
        with monkeypatch.context() as patch:
            patch.setattr("lullm.arena.backup.Backup.save", no_space)
            with pytest.raises(SleepError, match="No space"):
                await engine.sleep()
        assert not is_asleep(engine)
        await engine.sleep()
        with weights_filled_by(engine, lambda fill: None), pytest.raises(WakeUpError, match="checksum"):
            await engine.wake_up()
        assert engine.sleeping_tags == ("weights", "kv_cache")
        await engine.wake_up()
        assert tokens([first] + [output async for output in stream]) == expected["hello world"]

    def no_space(self, tensors, **options):
        raise OSError(28, "No space left on device")

    run(main())


def test_an_error_nobody_foresaw_ends_the_engine_and_every_call(engine, monkeypatch, caplog):
    async def main():
        stream, _ = await start(engine, PARAMS.replace(max_tokens=200))
        for method in ("prepare_sleep", "wake_up", "shutdown"):  # the engine's end fails of it, too
            monkeypatch.setattr(executor_of(engine), method, no_such_thing)
        for call in (engine.sleep(), engine.wake_up()):
            with pytest.raises(EngineDeadError):
                await call
        monkeypatch.undo()
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass

    def no_such_thing(*_, **__):
        raise RuntimeError("a bug")

    run(main())


def test_state_is_readable_from_any_thread(engine):
    async def main():
        seen, stop = set(), threading.Event()

        def read():
            while not stop.is_set():
                seen.add((is_asleep(engine), engine.sleeping_tags))

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(20):
            await engine.sleep(1, tags=["kv_cache"])
            await engine.wake_up()
        stop.set()
        await asyncio.to_thread(reader.join)
        assert seen <= {(False, ()), (True, ("kv_cache",)), (True, ()), (False, ("kv_cache",))}

    run(main())
