"""AsyncLLMEngine that sleeps by itself and is woken by requests: who can wait is not refused, and nobody waits on."""

import asyncio
import threading
import time

import pytest
from kit.engine.async_client import OPTIONS, PARAMS, collect, is_asleep, on_thread, run, tokens, until

from lullm import LLM
from lullm.errors import ConfigError, EngineAsleepError, EngineDeadError, InvalidRequestError, SleepError, WakeUpError

BOTH = ("weights", "kv_cache")


def slow_down(engine, monkeypatch, name, seconds=0.2):
    """`engine`'s method takes so much longer; the event that is returned is set once it has begun."""
    method, begun = getattr(engine._engine, name), threading.Event()

    def slow(*args, **kwargs):
        begun.set()
        time.sleep(seconds)
        return method(*args, **kwargs)

    monkeypatch.setattr(engine._engine, name, slow)
    return begun


def test_an_idle_engine_descends_and_a_request_wakes_it(build, expected):
    engine = build(sleep_after="50ms:1,120ms:disk,200ms:2")

    async def main():
        assert tokens(await collect(engine)) == expected["hello world"][:20]
        await until(lambda: is_asleep(engine))
        assert engine.sleeping_tags == BOTH and engine.idle_s >= 0.05
        await until(lambda: engine.sleep_state == "discard_all")
        assert engine.next_sleep is None
        assert tokens(await collect(engine)) == expected["hello world"][:20]
        assert not is_asleep(engine)
        assert ("woke", "request", BOTH) in engine.observer.events
        assert ("slept", "idle", 1) in engine.observer.events and ("slept", "idle", 2) in engine.observer.events

    run(main())


@pytest.mark.parametrize("caching", [True, False])
def test_a_conversation_finds_its_prefix_again(build, caching):
    engine = build(sleep_after="1h:1", enable_prefix_caching=caching)
    prompt = {"prompt_token_ids": [7 + i % 50 for i in range(100)]}

    async def main():
        first = await collect(engine, prompt, keep_alive=0.0)
        await until(lambda: engine.sleep_state == "weights_offloaded")
        turn = {"prompt_token_ids": prompt["prompt_token_ids"] + tokens(first) + [9, 8, 7]}
        outputs = await collect(engine, turn)
        assert outputs[-1].num_cached_tokens == (112 if caching else 0)  # the blocks that are full

    run(main())


def test_it_never_sleeps_while_requests_run(build, expected, monkeypatch):
    engine = build(sleep_after="30ms:1")
    slow_down(engine, monkeypatch, "step", 0.01)

    async def main():
        assert tokens(await collect(engine)) == expected["hello world"][:20]
        assert engine.observer.events == []
        await until(lambda: is_asleep(engine))

    run(main())


def test_keep_alive(build):
    engine = build(sleep_after="1h:1")

    async def wait_s():
        await until(lambda: engine.next_sleep is not None)
        return engine.next_sleep[1]

    async def main():
        await collect(engine, keep_alive=0.0)
        await until(lambda: is_asleep(engine))
        await collect(engine)
        assert 3500 < await wait_s() <= 3600
        await collect(engine, keep_alive=7200.0)
        assert 7100 < await wait_s() <= 7200
        await collect(engine, keep_alive=-1.0)
        await until(lambda: engine.idle_s > 0)
        assert engine.next_sleep is None
        await engine.sleep()
        await engine.wake_up()
        assert 3500 < await wait_s() <= 3600, "a call by hand ends the wish of the last request"
        for wrong in (float("nan"), float("inf")):
            with pytest.raises(InvalidRequestError, match="keep_alive"):
                await collect(engine, keep_alive=wrong)

    run(main())


def test_the_ladder_goes_on_from_where_a_call_has_put_the_engine(build):
    engine = build(sleep_after="1h:ram,2h:disk,3h:2")

    async def main():
        depth = [engine.next_sleep[0].backup]
        for how in ({"backup": "ram"}, {"backup": "disk"}, {"level": 2}):
            await engine.sleep(**how)
            depth.append(engine.next_sleep and engine.next_sleep[0].backup)
        assert depth == ["ram", "disk", "disk", None]
        await engine.wake_up()
        assert engine.next_sleep[0].backup == "ram"

    run(main())


def test_keep_alive_without_a_ladder(build):
    """The engine sleeps at level 1, and the next request wakes it for good."""
    engine = build(auto_wake=True)

    async def main():
        await collect(engine, keep_alive=0.0)
        await until(lambda: engine.sleep_state == "weights_offloaded")
        await collect(engine)
        assert engine.sleep_state == "awake" and engine.next_sleep is None

    run(main())


def test_keep_alive_needs_an_engine_that_requests_wake(build):
    engine = build()

    async def main():
        with pytest.raises(InvalidRequestError, match="auto_wake"):
            await collect(engine, keep_alive=0.0)

    run(main())


def test_what_is_in_somebodys_hands_is_left_alone(build):
    """A paused engine, and one that is awake in part, may be getting new weights."""
    engine = build(sleep_after="20ms:1")

    async def main():
        await engine.pause_generation("keep")
        await asyncio.sleep(0.1)
        assert engine.sleep_state == "paused" and engine.next_sleep is None
        await engine.resume_generation()
        await until(lambda: engine.sleep_state == "weights_offloaded")
        await engine.wake_up(["weights"])
        await asyncio.sleep(0.1)
        assert engine.sleep_state == "partial" and engine.next_sleep is None
        await engine.wake_up()
        await until(lambda: engine.sleep_state == "weights_offloaded")

    run(main())


@pytest.mark.parametrize("how", [{"level": 1}, {"level": 2}, {"level": 1, "tags": ["kv_cache"]}])
def test_a_request_wakes_what_a_call_put_to_sleep(build, expected, how):
    engine = build(auto_wake=True)

    async def main():
        await engine.sleep(**how)
        answers = await asyncio.gather(*(collect(engine, prompt, request_id=prompt) for prompt in expected))
        assert [tokens(answer) for answer in answers] == [ids[:20] for ids in expected.values()]
        assert [event[:2] for event in engine.observer.events] == [("slept", "call"), ("woke", "request")]

    run(main())


def test_without_auto_wake_it_is_refused(build):
    engine = build(sleep_after="20ms:1", auto_wake=False)

    async def main():
        await until(lambda: is_asleep(engine))
        with pytest.raises(EngineAsleepError):
            await collect(engine)
        await engine.wake_up()

    run(main())


def test_a_request_waits_for_the_end_of_a_pause(build, expected):
    engine = build(auto_wake=True)

    async def main():
        await engine.pause_generation()
        waiting = asyncio.create_task(collect(engine))
        gone = asyncio.create_task(collect(engine, request_id="gone"))
        await until(lambda: len(engine._threaded.admission._parked) == 2)
        assert engine.sleep_state == "paused"
        gone.cancel()
        await until(lambda: len(engine._threaded.admission._parked) == 1)
        await engine.resume_generation()
        assert tokens(await waiting) == expected["hello world"][:20]
        await engine.sleep(1)
        with pytest.raises(EngineAsleepError, match="not only paused"):
            await engine.resume_generation()

    run(main())


def test_a_request_waits_for_a_sleep_that_waits(build, expected, monkeypatch):
    engine = build(auto_wake=True)
    slow_down(engine, monkeypatch, "step", 0.003)

    async def main():
        stream = engine.generate("hello world", PARAMS, "x")
        first = await anext(stream)
        sleeping = asyncio.create_task(engine.sleep(1, mode="wait"))
        await until(lambda: engine._threaded.sleep_control._waiting_sleeps)
        late = asyncio.create_task(collect(engine, request_id="late"))
        assert tokens([first] + [output async for output in stream]) == expected["hello world"][:20]
        assert (await sleeping).tags == BOTH
        assert tokens(await late) == expected["hello world"][:20]
        assert [event[:2] for event in engine.observer.events] == [("slept", "call"), ("woke", "request")]

    run(main())


def test_too_many_waiting_requests_are_refused(build, expected, monkeypatch):
    engine = build(auto_wake=True, max_num_wake_waiting=3)
    begun = slow_down(engine, monkeypatch, "wake_up", 0.4)

    async def main():
        # Awake, the bound is none: there is a queue for that.
        answers = await asyncio.gather(*(collect(engine, request_id=str(i)) for i in range(10)))
        await engine.sleep()
        waiting = [asyncio.create_task(collect(engine, request_id=str(i))) for i in range(3)]
        await until(begun.is_set)
        with pytest.raises(EngineAsleepError, match="3 requests wait already"):
            await collect(engine, request_id="4")
        answers += await asyncio.gather(*waiting)
        answers.append(await collect(engine))
        assert all(tokens(answer) == expected["hello world"][:20] for answer in answers)

    run(main())


def test_a_wake_up_that_takes_too_long(build, expected, monkeypatch):
    engine = build(auto_wake=True, wake_timeout=0.1)

    async def main():
        await engine.sleep()
        with monkeypatch.context() as patch:
            begun = slow_down(engine, patch, "wake_up", 0.4)
            waiting = [asyncio.create_task(collect(engine, request_id=str(i))) for i in range(3)]
            await until(begun.is_set)
        for task in waiting:
            with pytest.raises(EngineAsleepError, match=r"within 0\.1 s"):
                await task
        await until(lambda: not is_asleep(engine))
        await until(lambda: engine.stats().num_running == engine.stats().num_used_blocks == 0)
        assert tokens(await collect(engine)) == expected["hello world"][:20]

    run(main())


def test_a_pause_that_takes_too_long(build):
    engine = build(auto_wake=True, wake_timeout=0.05)

    async def main():
        await engine.pause_generation()
        with pytest.raises(EngineAsleepError, match="did not wake up"):
            await collect(engine)
        await until(lambda: not engine._threaded.admission._parked)

    run(main())


def test_nobody_is_woken_for_a_client_that_left(build, monkeypatch):
    engine = build(auto_wake=True)

    async def main():
        await engine.sleep()
        began, release = threading.Event(), threading.Event()

        def block(_):
            began.set()
            assert release.wait(20)

        busy = asyncio.create_task(on_thread(engine, lambda: block(None)))
        await until(began.is_set)
        gone = asyncio.create_task(collect(engine))
        await until(lambda: engine._entry._num_untaken == 1)
        gone.cancel()
        await asyncio.wait({gone})
        release.set()
        await busy
        await engine.reset_prefix_cache()  # behind the request in the queue
        assert is_asleep(engine) and engine._entry._num_untaken == 0

    run(main())


def test_a_failed_wake_up_fails_all_who_wait_for_it_and_is_tried_once(build, expected, monkeypatch, caplog):
    engine = build(auto_wake=True)
    calls = []

    def fail(tags):
        calls.append(tags)
        time.sleep(0.2)
        raise WakeUpError("still asleep: another checksum")

    async def main():
        await engine.sleep()
        with monkeypatch.context() as patch:
            patch.setattr(engine._engine, "wake_up", fail)
            waiting = [asyncio.create_task(collect(engine, request_id=str(i))) for i in range(5)]
            for task in waiting:
                with pytest.raises(WakeUpError, match="another checksum"):
                    await task
            assert len(calls) == 1 and engine.sleeping_tags == BOTH
            with pytest.raises(WakeUpError):
                await collect(engine)
            assert len(calls) == 2, "who comes later tries again"
        assert tokens(await collect(engine)) == expected["hello world"][:20]
        failed = ("wake_up_failed", "request")
        assert [e for e in engine.observer.events if e != ("slept", "call", 1)] == [
            failed,
            failed,
            ("woke", "request", BOTH),
        ]

    run(main())


def test_an_idle_engine_that_cannot_sleep_stays_awake_and_serves(build, expected, monkeypatch, caplog):
    engine = build(sleep_after="20ms:1")
    calls = []

    def no_space(*_, **__):
        calls.append(1)
        raise SleepError("No space left on device")

    async def main():
        with monkeypatch.context() as patch:
            patch.setattr(engine._engine, "sleep", no_space)
            await until(lambda: len(calls) == 2)
            await asyncio.sleep(0.1)
            assert len(calls) == 2, "with the prefix cache and without, but not again and again"
            assert tokens(await collect(engine)) == expected["hello world"][:20]
            await until(lambda: len(calls) == 4)
        assert set(engine.observer.events) == {("sleep_failed", "idle")}
        assert not is_asleep(engine) and "could not go to sleep" in caplog.text

    run(main())


def test_an_error_nobody_foresaw_fails_the_request_that_met_it(build, monkeypatch, caplog):
    engine = build(auto_wake=True)

    def fail(tags):
        raise RuntimeError("a bug")

    async def main():
        await engine.sleep()
        monkeypatch.setattr(engine._engine, "wake_up", fail)
        waiting = [asyncio.create_task(collect(engine, request_id=str(i))) for i in range(3)]
        for task in waiting:
            with pytest.raises(EngineDeadError):
                await task

    run(main())


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("state", ["asleep", "waking", "paused"])
def test_shutdown_while_requests_wait(build, monkeypatch, state, drain):
    engine = build(auto_wake=True)

    async def main():
        if state == "paused":
            await engine.pause_generation()
        else:
            await engine.sleep()
        begun = slow_down(engine, monkeypatch, "wake_up", 0.2)
        waiting = []
        if state != "asleep":
            waiting = [asyncio.create_task(collect(engine, request_id=str(i))) for i in range(3)]
            await until(begun.is_set if state == "waking" else lambda: len(engine._threaded.admission._parked) == 3)
        await engine.shutdown(drain)
        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(answer, list):  # it was taken in when the wake-up ended
                assert answer[-1].finished and answer[-1].outputs[0].finish_reason in ("length", "abort")
            else:
                assert isinstance(answer, EngineDeadError)
        with pytest.raises(EngineDeadError):
            await collect(engine)
        assert not begun.is_set() or state == "waking"

    run(main())


def test_threads_own_options_are_refused_without_one(qwen3_folder):
    for options in ({"sleep_after": "60s:1"}, {"auto_wake": True}):
        with pytest.raises(ConfigError, match="AsyncLLMEngine"):
            LLM(str(qwen3_folder), **OPTIONS, **options)
    with LLM(str(qwen3_folder), auto_wake=False, **OPTIONS) as llm:
        llm.sleep()
