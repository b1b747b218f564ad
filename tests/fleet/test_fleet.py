"""Fleet over tiny real engines: the tokens of each model alone, however often it sleeps; others outlive its faults."""

import asyncio
import contextlib
import dataclasses
import math

import pytest
from kit.fleet.real import make_fleet, spec

from lullm import LLM, SamplingParams
from lullm.config.engine import EngineConfig
from lullm.errors import (
    ConfigError,
    EngineAsleepError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    ModelUnavailableError,
    SleepError,
    UnsupportedError,
    WakeUpError,
)
from lullm.fleet import record as records
from lullm.fleet.engines import open_engine
from lullm.fleet.fleet import Fleet
from lullm.fleet.options import FleetOptions, ModelSpec

PARAMS = SamplingParams(temperature=0, max_tokens=12)
PROMPT = "the quick brown"


@pytest.fixture(scope="module")
def folders(qwen3_folder, llama_folder):
    return {"a": qwen3_folder, "b": llama_folder}


@pytest.fixture(scope="module")
def alone(folders):
    """Each model's tokens without a fleet."""
    found = {}
    for name, folder in folders.items():
        with LLM(str(folder), dtype="float32", num_gpu_blocks_override=40) as llm:
            found[name] = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
    assert found["a"] != found["b"]
    return found


@pytest.fixture
def both(folders):
    """Two models, of which one fits."""
    return [spec(name, folder) for name, folder in folders.items()]


def run(fleet: Fleet, work) -> None:
    """Run `work` of a fleet, and end it."""

    async def whole() -> None:
        try:
            await work(fleet)
        finally:
            await fleet.shutdown(drain=False)

    asyncio.run(whole())


async def ask(fleet: Fleet, name: str, number: int = 0, params: SamplingParams = PARAMS) -> list[int]:
    """The tokens of a model's answer."""
    async for output in fleet.members[name].generate(PROMPT, params, f"{name}-{number}"):
        tokens = output.outputs[0].token_ids
    return tokens


def states(fleet: Fleet) -> list[str]:
    return list(fleet.states().values())


def test_models_take_turns_and_say_what_they_say_alone(both, alone):
    async def work(fleet: Fleet) -> None:
        for number, name in enumerate("ababba"):
            assert await ask(fleet, name, number) == alone[name]
            assert fleet.policy.held_bytes <= fleet.budget_bytes
        together = [ask(fleet, name, 10 + number) for number, name in enumerate("abbaabab")]
        assert await asyncio.gather(*together) == [alone[name] for name in "abbaabab"]
        assert fleet.policy.changes["a", "load", "request"] == 1, "after that it sleeps and wakes"
        assert fleet.policy.changes["a", "wake", "request"] >= 2
        assert sorted(states(fleet)) == ["awake", "sleeping"]

    run(make_fleet(*both), work)


@pytest.mark.parametrize("evict_to", ["ram", "2", "unload"])
def test_each_way_to_make_room(folders, alone, evict_to):
    async def work(fleet: Fleet) -> None:
        for number, name in enumerate("abab"):
            assert await ask(fleet, name, number) == alone[name]
        assert set(states(fleet)) == {"unloaded" if evict_to == "unload" else "sleeping", "awake"}
        assert (fleet.members["a"].engine is None) == (evict_to == "unload")

    run(make_fleet(*(spec(name, folder, evict_to=evict_to) for name, folder in folders.items())), work)


def test_models_that_fit_together_stay(folders, alone):
    async def work(fleet: Fleet) -> None:
        fleet.start()
        while states(fleet) != ["awake", "awake"]:
            await asyncio.sleep(0.01)
        for number, name in enumerate("ab"):
            assert await ask(fleet, name, number) == alone[name]
        assert {(change, cause) for _, change, cause in fleet.policy.changes} == {("load", "preload")}

    run(make_fleet(*(spec(name, folder, preload=True) for name, folder in folders.items()), fits=2.5), work)


def test_a_failed_load_is_told_and_tried_again_and_others_live(both, alone, monkeypatch):
    monkeypatch.setattr(records, "FIRST_RETRY_S", 1000.0)
    broken = {"a"}

    def open_(config: EngineConfig, *rest):
        if config.served_model_name in broken:
            raise OSError("the disk is on fire")
        return open_engine(config, *rest)

    async def work(fleet: Fleet) -> None:
        with pytest.raises(ModelLoadError, match="'a' could not be loaded: the disk is on fire"):
            await ask(fleet, "a")
        with pytest.raises(ModelUnavailableError, match="it is tried again in"):
            await ask(fleet, "a", 1)
        assert fleet.members["a"].status.reason == "the disk is on fire"
        assert states(fleet) == ["failed", "unloaded"]
        assert await ask(fleet, "b") == alone["b"]
        broken.clear()
        fleet.policy.records["a"].retry_at = 0.0  # the time has passed
        assert await ask(fleet, "a", 2) == alone["a"]

    run(make_fleet(*both, open_=open_), work)


def test_an_engine_that_dies_is_replaced(both, alone):
    async def work(fleet: Fleet) -> None:
        assert await ask(fleet, "a") == alone["a"]

        def dies(*_):
            raise RuntimeError("a step failed")

        fleet.members["a"].engine._engine._loop.step = dies
        with pytest.raises(EngineDeadError):
            await ask(fleet, "a", 1)
        fleet.check_running()
        assert await ask(fleet, "b") == alone["b"]
        assert await ask(fleet, "a", 2) == alone["a"]
        assert fleet.policy.changes["a", "unload", "fault"] == 1

    run(make_fleet(*both), work)


def test_a_failed_wake_up_begins_anew(both, alone):
    async def work(fleet: Fleet) -> None:
        for name in "ab":
            await ask(fleet, name)

        async def fails(tags=None):
            raise WakeUpError("a byte has changed")

        fleet.members["a"].engine.wake_up = fails
        with pytest.raises(ModelLoadError, match="a byte has changed"):
            await ask(fleet, "a", 3)
        fleet.policy.records["a"].retry_at = 0.0
        assert await ask(fleet, "a", 4) == alone["a"]

    run(make_fleet(*both), work)


def test_a_sleep_that_fails_unloads_if_others_need_the_memory(both, alone):
    async def work(fleet: Fleet) -> None:
        await ask(fleet, "a")

        async def fails(level, **_):
            raise SleepError("no space left on device")

        fleet.members["a"].engine.sleep = fails
        assert await ask(fleet, "b") == alone["b"]
        assert states(fleet) == ["unloaded", "awake"]
        assert await ask(fleet, "a", 1) == alone["a"]

    run(make_fleet(*both), work)


def test_a_client_that_leaves_while_it_waits_leaves_nothing(both):
    async def work(fleet: Fleet) -> None:
        await ask(fleet, "a")
        with fleet.use("a"):
            waiting = asyncio.ensure_future(ask(fleet, "b"))
            while not fleet.policy.records["b"].waiting:
                await asyncio.sleep(0)
            assert fleet.members["b"].stats().num_waiting == 1
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            assert not fleet.policy.records["b"].waiting and not fleet.turns._outcomes
        assert states(fleet) == ["awake", "unloaded"]

    run(make_fleet(*both), work)


def test_waits_are_bounded(both):
    async def work(fleet: Fleet) -> None:
        while fleet.states()["a"] != "awake":  # its load may take longer than the bound
            with contextlib.suppress(ModelUnavailableError):
                await fleet.members["a"].wake_up()
        with fleet.use("a"), pytest.raises(ModelUnavailableError, match="no room for the model 'b' within 0.05 s"):
            await ask(fleet, "b")

    run(make_fleet(*both, wait_s=0.05), work)


def test_calls(both, alone):
    async def work(fleet: Fleet) -> None:
        a = fleet.members["a"]
        assert (await a.sleep(1)).tags == () and await a.reset_prefix_cache(), "there is nothing that could sleep"
        with pytest.raises(EngineAsleepError, match="cannot be paused"):
            await a.pause_generation()
        with pytest.raises(EngineAsleepError, match="'a' is not loaded"):
            await a.explain_sleep()
        assert (await a.wake_up()).tags == ("weights", "kv_cache")
        assert (await a.wake_up()).tags == ()
        assert (await a.explain_sleep()).frees_bytes > 0
        report = await a.sleep(1)
        assert report.freed_bytes > 0 and a.sleep_state == "weights_offloaded" and a.status.state == "sleeping"
        assert (await a.sleep(2)).tags == ("weights", "kv_cache") and a.sleep_state == "discard_all"
        assert (await a.wake_up()).restored_bytes > 0
        with pytest.raises(InvalidRequestError, match="sleeps and wakes whole"):
            await a.sleep(1, tags=["weights"])
        with pytest.raises(InvalidRequestError, match="keep_alive must be a finite"):
            async for _ in a.generate(PROMPT, PARAMS, "k", keep_alive=math.inf):
                pass
        await a.pause_generation()
        with pytest.raises(EngineAsleepError):
            await ask(fleet, "a")
        await a.resume_generation()
        assert await ask(fleet, "a", 1) == alone["a"]
        assert await a.collective_rpc("modified_weights") == [[]]
        assert (await a.occupancy(10)).device.num_blocks > 0
        assert await fleet.unload("a") and not await fleet.unload("a")
        assert (await a.occupancy(10)).device.num_blocks == 0 and a.stats().num_blocks == 0

    run(make_fleet(*both), work)


def test_requests_that_a_sleep_keeps_go_on(both, alone):
    async def work(fleet: Fleet) -> None:
        a, first = fleet.members["a"], asyncio.Event()
        long = PARAMS.replace(max_tokens=200, ignore_eos=True)

        async def talk() -> list[int]:
            async for output in a.generate(PROMPT, long, "long"):
                first.set()
                tokens = output.outputs[0].token_ids
            return tokens

        expected = await talk()
        first.clear()
        talking = asyncio.ensure_future(talk())
        await first.wait()
        await a.sleep(1, mode="keep")
        assert not talking.done() and a.status.state == "sleeping"
        assert await ask(fleet, "a") == alone["a"], "a request wakes it"
        assert await talking == expected

    run(make_fleet(*both), work)


def test_idle_models_sleep_by_their_own_ladder(folders):
    async def work(fleet: Fleet) -> None:
        a, seen = fleet.members["a"], []
        a.observe_sleep(seen.append)
        await ask(fleet, "a")
        while a.status.state != "sleeping":
            await asyncio.sleep(0.01)
        assert [(event.cause, event.slept.level) for event in seen] == [("idle", 1)]
        async for _ in a.generate(PROMPT, PARAMS, "awake", keep_alive=-1.0):
            pass
        assert a.next_sleep is None and seen[-1].cause == "request"

    run(make_fleet(spec("a", folders["a"], {"sleep_after": "100ms:1"})), work)


def test_a_model_has_bounds_of_its_own_for_waits(folders, alone):
    """No engine could be made: it has no ladder, for which it thought the bounds to be."""

    async def work(fleet: Fleet) -> None:
        terms = fleet.policy.records["a"].terms
        assert (terms.bound_s, terms.max_waiting) == (7.0, 3)
        assert await ask(fleet, "a") == alone["a"]

    bounds = {"sleep_after": "1h:1", "wake_timeout": 7.0, "max_num_wake_waiting": 3}
    run(make_fleet(spec("a", folders["a"], bounds)), work)


def test_the_end_refuses_those_that_wait(both):
    async def work(fleet: Fleet) -> None:
        await ask(fleet, "a")
        with fleet.use("a"):
            waiting = asyncio.ensure_future(ask(fleet, "b"))
            while not fleet.policy.records["b"].waiting:
                await asyncio.sleep(0)
            await fleet.shutdown(drain=False)
            with pytest.raises(EngineDeadError, match="has been shut down"):
                await waiting
        with pytest.raises(EngineDeadError):
            await ask(fleet, "b", 1)

    run(make_fleet(*both), work)


def test_in_processes_of_their_own(both, alone):
    async def work(fleet: Fleet) -> None:
        for name in "ab":
            assert await ask(fleet, name) == alone[name]
        assert states(fleet) == ["unloaded", "awake"], "a process of its own would hold more than is left"

    run(make_fleet(*both, has_process=True), work)


def test_what_is_refused_at_the_start(folders):
    one = spec("a", folders["a"])
    with pytest.raises(ConfigError, match=r"'a' needs .* MiB .*budget is 4.0 MiB"):
        Fleet([one], FleetOptions(memory_budget=4 << 20, model_slice_s=0))
    with pytest.raises(ConfigError, match="two models are called 'a'"):
        Fleet([one, spec("b", folders["b"], aliases=("a",))], FleetOptions())
    with pytest.raises(ConfigError, match="do not fit together"):
        make_fleet(*(spec(name, folders[name], preload=True) for name in "ab"))
    with pytest.raises(UnsupportedError, match="has one worker"):
        make_fleet(spec("a", folders["a"], {"tensor_parallel_size": 2}))
    with pytest.raises(ConfigError, match="wakes its models for their requests"):
        make_fleet(spec("a", folders["a"], {"auto_wake": False}))
    with pytest.raises(ConfigError, match="say each one's kv_cache_memory_bytes"):
        make_fleet(spec("a", folders["a"], {"gpu_memory_utilization": 0.5}))
    with pytest.raises(ConfigError, match="need a memory_budget"):
        Fleet([spec("a", folders["a"], {"device": "cuda"})], FleetOptions())
    with pytest.raises(ConfigError, match="has room for .* tokens in"):
        make_fleet(spec("a", folders["a"], {"max_model_len": 512, "kv_cache_memory_bytes": 1 << 16}))
    with pytest.raises(ConfigError, match="must be below max_model_wait"):
        FleetOptions(model_slice_s=10, max_model_wait_s=5)
    with pytest.raises(ConfigError, match="evict_to must be one of"):
        dataclasses.replace(one, evict_to="3")
    with pytest.raises(ConfigError, match="must not be empty"):
        ModelSpec(name="", config=one.config)


def test_plans_come_true(folders):
    """What a model takes once it is there is what was planned; a cache has its share of the budget by itself."""

    async def work(fleet: Fleet) -> None:
        await ask(fleet, "a")
        member, need = fleet.members["a"], fleet.policy.records["a"].terms.need
        resident = (await member.collective_rpc("resident_bytes"))[0]
        assert resident["weights"] == pytest.approx(need.weights_bytes, abs=1 << 21)
        assert member.engine.config.max_model_len == member.config.max_model_len
        assert need.kv_bytes <= fleet.budget_bytes / 8

    one = spec("a", folders["a"], {"kv_cache_memory_bytes": None, "max_num_seqs": 256})
    run(Fleet([one], FleetOptions(memory_budget=64 << 20)), work)
