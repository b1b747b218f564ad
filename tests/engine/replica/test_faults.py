"""Faults of one engine of several, at every one of its messages: nobody waits for ever, and the others go on."""

import asyncio
import contextlib
import random
import threading
import time

import pytest
import torch
from kit.engine.fakes import FakeEngines

from lullm.config.engine import EngineConfig
from lullm.engine.replica.engine import ReplicaEngine
from lullm.errors import EngineDeadError, InvalidRequestError
from lullm.types.sampling_params import OutputKind, SamplingParams

LIMIT_S = 20.0
"""Of a whole run; far beyond what it takes."""
PARAMS = SamplingParams(max_tokens=12, output_kind=OutputKind.DELTA)


@pytest.fixture
def build(monkeypatch):
    """`build((fault, message), ...)`: a `ReplicaEngine` over fake engines, its `fakes`, which are all closed then."""
    made = []

    def build_engine(*faults):
        engines = FakeEngines(*faults)
        monkeypatch.setattr("lullm.engine.process.client.EngineProcess", engines)
        engine = ReplicaEngine(EngineConfig(model="demo", data_parallel_size=2, max_model_len=128))
        engine.fakes = engines.all
        made.append(engine)
        return engine

    threads = set(threading.enumerate())
    yield build_engine
    for engine in made:
        engine.shutdown()
        assert len(engine.fakes) == 2 and all(fake.is_closed for fake in engine.fakes)
        assert [fake.error for fake in engine.fakes] == [None, None]
    assert set(threading.enumerate()) <= threads, "a thread stays behind"


def add(engine, count, max_tokens=12):
    for number in range(count):
        engine.add_request(f"r{number}", [5, 6, 7], PARAMS.replace(max_tokens=max_tokens))
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), engine._loop).result()  # behind them all on the event loop
    for fake in engine.fakes:
        fake.release()


def run_out(engine):
    """(tokens of what has finished, errors) of all requests."""
    drawn, finished, errors = {}, {}, []
    deadline = time.monotonic() + LIMIT_S
    while engine.has_unfinished_requests():
        assert time.monotonic() < deadline, "a request waits for ever"
        try:
            outputs = engine.step()
        except EngineDeadError as error:
            errors.append(error)
            continue
        for output in outputs:
            drawn.setdefault(output.request_id, []).extend(output.outputs[0].token_ids)
            if output.finished:
                finished[output.request_id] = drawn[output.request_id]
    return finished, errors


def check_that_all_calls_raise(engine, text):
    for call in (
        engine.check_health,
        engine.stats,
        engine.is_sleeping,
        lambda: engine.sleep_state,
        lambda: engine.sleeping_tags,
        lambda: engine.add_request("late", [5], PARAMS),
        lambda: engine.sleep(1),
    ):
        with pytest.raises(EngineDeadError, match=text):
            call()


@pytest.mark.parametrize("fault", ["kill", "hang", "error"])
def test_a_fault_at_any_message_fails_the_requests_of_that_engine_only(build, fault):
    for at in range(1, 9):
        engine = build((fault, at))
        add(engine, 6, max_tokens=8)
        finished, errors = run_out(engine)
        assert len(finished) == len(errors) == 3
        assert all(tokens == list(range(8)) for tokens in finished.values())
        texts = {str(error) for error in errors}
        assert len(texts) == 1 and texts.pop().startswith(("engine 0 of 2: ", "engine 1 of 2: "))
        check_that_all_calls_raise(engine, "engine [01] of 2")
        engine.shutdown()
        check_that_all_calls_raise(engine, "has been shut down")


def test_an_error_is_raised_though_the_other_engine_always_has_outputs(build):
    """It went behind the outputs that had come meanwhile, again and again, as long as there were any."""
    engine = build()
    add(engine, 2, max_tokens=10**9)
    ended, running = (engine._unfinished[name][0] for name in ("r0", "r1"))
    output = next(each for each in iter(lambda: next(iter(engine.step()), None), 0) if each is not None)
    for _ in range(3):
        engine._news.put((running, output))
        engine._news.put((ended, EngineDeadError("gone")))
        engine._news.put((running, output))
    assert engine.step(), "what came before"
    with pytest.raises(EngineDeadError, match="gone"):
        engine.step()
    assert engine.unfinished_request_ids() == ["r1"], "the other's request goes on"
    assert engine.step()
    engine.abort_request("r1")
    finished, errors = run_out(engine)
    assert list(finished) == ["r1"] and not errors


def some_call(engine, rng):
    """A call that reaches all engines."""
    weights = [("a", torch.ones(2)), ("b", torch.ones(0))]
    return rng.choice(
        [
            lambda: (engine.sleep(1), engine.wake_up()),
            lambda: engine.reset_prefix_cache(),
            lambda: engine.update_weights(iter(weights)),
            lambda: engine.abort_request(["r1", "r2"]),
        ]
    )


@pytest.mark.parametrize("seed", range(24))
def test_calls_among_faults_all_return(build, seed):
    rng = random.Random(seed)
    engine = build((rng.choice(["kill", "hang", "error"]), rng.randint(1, 20)))
    with contextlib.suppress(EngineDeadError):
        add(engine, rng.randint(1, 8), max_tokens=rng.randint(1, 30))
    for _ in range(rng.randint(1, 5)):
        with contextlib.suppress(EngineDeadError):
            for _ in range(rng.randint(0, 3)):
                engine.step()
            some_call(engine, rng)()
    num_asked = len(engine.unfinished_request_ids())
    finished, errors = run_out(engine) if num_asked else ({}, [])
    assert len(finished) + len(errors) >= num_asked


def test_no_weight_ends_an_update_but_the_end_of_the_iterable(build):
    engine = build()
    empty = ("nothing", torch.ones(0))
    assert engine.update_weights([empty, ("a", torch.ones(2)), empty]) == 3
    for wrong in (b"", None, (b"", torch.ones(0)), ("a", b"")):
        with pytest.raises(InvalidRequestError, match="pairs of a name and a tensor"):
            engine.update_weights([empty, wrong])


def test_weights_are_made_on_the_thread_that_calls_and_cannot_call_back(build):
    """A thread of its own made them: a call of the same engine waited for the update, and the update for the call."""
    engine = build()
    seen = []

    def weights():
        seen.append(threading.current_thread())
        yield "a", torch.ones(2)
        for call in (
            lambda: engine.sleep(1),
            engine.step,
            engine.shutdown,
            lambda: engine.update_weights([]),
            lambda: engine.add_request("r", [5, 6], PARAMS),
        ):
            with pytest.raises(InvalidRequestError, match="make them before"):
                call()
        yield "b", torch.ones(2)

    assert engine.update_weights(weights()) == 2
    assert seen == [threading.current_thread()]
    assert engine.update_weights([("a", torch.ones(2))]) == 1


def test_an_iterable_that_stumbles_or_is_interrupted_ends_the_update(build):
    engine = build()
    for error in (RuntimeError("stumbled"), KeyboardInterrupt()):

        def weights(error=error):
            yield "a", torch.ones(2)
            raise error

        with pytest.raises(type(error)):
            engine.update_weights(weights())
    assert engine.update_weights([("a", torch.ones(2))]) == 1
