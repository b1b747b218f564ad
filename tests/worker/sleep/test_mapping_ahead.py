"""The KV cache's memory is mapped while the weights are still on their way, and only if it is wanted."""

import dataclasses
import threading

import pytest
from kit.engine.parts import arenas_of, backups_of, weights_filled_by
from kit.worker.fakes import ReplicaExecutor

from lullm import SamplingParams
from lullm.arena.arena import ArenaState
from lullm.arena.backend import CopyKind
from lullm.errors import WakeUpError
from lullm.units import KIB, MIB

pytest.importorskip("triton")

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SIZES = {"num_gpu_blocks_override": 512}
PROMPTS = [[5 + i, 6, 7, 8 * i + 3] * 6 for i in range(3)]


class Order:
    """A back end of small chunks. The first copy to it waits until `is_expected` memory has been created."""

    def __init__(self, fake):
        fake.set_granularity(64 * KIB)
        self._real = fake.build("cuda", chunk_bytes=MIB)
        self.is_expected, self._created, self.addresses = None, threading.Event(), []
        self.backend = dataclasses.replace(self._real, create_and_map=self._create, copy=self._copy)

    def _create(self, address, num_bytes):
        handle = self._real.create_and_map(address, num_bytes)
        self.addresses.append(address)
        if self.is_expected is not None and self.is_expected(address):
            self._created.set()
        return handle

    def _copy(self, to, source, num_bytes, kind, stream):
        if self.is_expected is not None and kind is CopyKind.TO_ARENA:
            assert self._created.wait(10), "nothing was mapped beside this copy"
        self._real.copy(to, source, num_bytes, kind, stream)


def tokens(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def begin(llm):
    """Requests that are half done, so that KV blocks are saved."""
    for number, prompt in enumerate(PROMPTS):
        llm.llm_engine.add_request(str(number), prompt, GREEDY)
    for _ in range(5):
        llm.llm_engine.step()


def end(llm):
    done = {}
    while llm.llm_engine.has_unfinished_requests():
        done |= {o.request_id: o.outputs[0].token_ids for o in llm.llm_engine.step() if o.finished}
    return [done[str(number)] for number in range(len(PROMPTS))]


def states(llm):
    return {tag: arena.state for tag, arena in arenas_of(llm).items() if tag in ("weights", "kv_cache")}


def asleep(*tags):
    return {tag: ArenaState.RELEASED if tag in tags else ArenaState.MAPPED for tag in ("weights", "kv_cache")}


def are_in(arena, addresses):
    """Whether each of them lies in the arena."""
    return [0 <= address - arena.base_address < arena.capacity_bytes for address in addresses]


def test_kv_is_mapped_while_the_weights_are_copied(build, fake):
    order = Order(fake)
    llm = build(order.backend, **SIZES)
    expected, kv = tokens(llm), arenas_of(llm)["kv_cache"]
    assert kv.num_chunks > 2
    begin(llm)
    llm.sleep()
    assert states(llm) == asleep("weights", "kv_cache")
    order.is_expected = lambda address: address == kv.base_address + (kv.num_chunks - 1) * MIB
    report = llm.wake_up()
    assert report.tags == ("weights", "kv_cache") and states(llm) == asleep()
    assert end(llm) == expected and tokens(llm) == expected


def test_by_tags_no_kv_is_mapped_before_it_is_asked_for(build, fake):
    order = Order(fake)
    llm = build(order.backend, **SIZES)
    expected, kv = tokens(llm), arenas_of(llm)["kv_cache"]
    llm.sleep()
    order.addresses.clear()
    llm.wake_up(["weights"])
    assert states(llm) == asleep("kv_cache") and not any(are_in(kv, order.addresses))
    llm.wake_up(["kv_cache"])
    assert states(llm) == asleep() and tokens(llm) == expected


def test_weights_from_a_checkpoint_come_before_any_kv(build, fake):
    """To read them may take memory of the device for a moment."""
    order = Order(fake)
    llm = build(order.backend, **SIZES)
    expected, kv, seen = tokens(llm), arenas_of(llm)["kv_cache"], []

    def fill(original):
        original()
        seen.append(are_in(kv, order.addresses))

    for options in ({"level": 2}, {"level": 1, "backup": "disk"}):
        llm.sleep(**options)
        order.addresses.clear()
        with weights_filled_by(llm, fill):
            llm.wake_up()
        assert seen[-1] and not any(seen[-1]), "once the weights are read, they alone are mapped"
        assert any(are_in(kv, order.addresses)) and tokens(llm) == expected


@pytest.mark.parametrize("nth", [1, 3])
def test_a_driver_that_refuses_kv_gets_the_weights_back(build, fake, nth):
    """All is released again, with the backups kept, and the error says what came back."""
    order = Order(fake)
    llm = build(order.backend, **SIZES)
    expected, weights = tokens(llm), arenas_of(llm)["weights"]
    begin(llm)
    llm.sleep()
    fake.fail("cuMemCreate", weights.num_chunks + nth, 2)
    with pytest.raises(WakeUpError, match=r"kv_cache still asleep: .* of .* came back, .*OUT_OF_MEMORY.*free memory"):
        llm.wake_up()
    assert llm.llm_engine.sleep_state == "weights_offloaded" and states(llm) == asleep("weights", "kv_cache")
    assert fake.counts()["handles"] == 0
    llm.wake_up()
    assert states(llm) == asleep() and end(llm) == expected


def test_weights_that_fail_take_the_kv_with_them(build, fake):
    order = Order(fake)
    llm = build(order.backend, **SIZES)
    expected, kv = tokens(llm), arenas_of(llm)["kv_cache"]
    begin(llm)
    llm.sleep()
    chunk = backups_of(llm)["weights"].store.get(0, 1000).numpy()
    chunk[5] ^= 1
    order.is_expected = lambda address: address == kv.base_address
    with pytest.raises(WakeUpError, match="weights still asleep: .*damaged"):
        llm.wake_up()
    assert states(llm) == asleep("weights", "kv_cache") and fake.counts()["handles"] == 0
    chunk[5] ^= 1
    llm.wake_up()
    assert end(llm) == expected


def test_a_wake_up_that_stops_between_two_tags(build, fake, monkeypatch):
    """All is asleep again: the next sleep, the next wake-up and the engine's end find it so."""
    order = Order(fake)
    llm = build(order.backend, **SIZES)
    expected, lifecycle = tokens(llm), llm.llm_engine.lifecycle
    drop = lifecycle.drop_stale_kv
    for ending in ("sleep", "wake_up", "close"):
        llm.sleep()
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "drop_stale_kv", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                llm.wake_up()
        assert llm.llm_engine.sleeping_tags == ("weights", "kv_cache")
        assert fake.counts()["handles"] == 0, "also what was mapped ahead"
        if ending == "sleep":
            llm.sleep(level=2)
        if ending != "close":
            llm.wake_up()
            assert tokens(llm) == expected
    assert lifecycle.drop_stale_kv == drop


def of_two_workers(build, fake, monkeypatch):
    """Real ones, each with arenas of its own: both are awake or none is."""
    monkeypatch.setattr("lullm.engine.llm_engine.open_executor", lambda *args: ReplicaExecutor(2, *args))
    return build(Order(fake).backend, **SIZES)


def mapped(llm):
    """Tags with memory behind them, by worker."""
    return [
        {arena.tag for arena in worker.arenas if arena.tag in ("weights", "kv_cache") and arena.mapped_bytes}
        for worker in llm.llm_engine.model_executor.workers
    ]


def test_kv_that_one_of_two_workers_lacks(build, fake, monkeypatch):
    llm = of_two_workers(build, fake, monkeypatch)
    expected = tokens(llm)
    first, second = llm.llm_engine.model_executor.workers
    begin(llm)
    llm.sleep()
    assert mapped(llm) == [set(), set()]
    kv = arenas_of(llm)["kv_cache"]
    fake.fail("cuMemCreate", 2 * first.loaded.arena.num_chunks + kv.num_chunks + 2, 2)  # of one of them, late
    with pytest.raises(WakeUpError, match="kv_cache still asleep"):
        llm.wake_up()
    assert mapped(llm) == [set(), set()]
    llm.wake_up()
    assert mapped(llm) == [{"weights", "kv_cache"}] * 2 and end(llm) == expected


def test_weights_that_one_of_two_workers_cannot_restore(build, fake, monkeypatch):
    """The other one has mapped its KV cache by then."""
    llm = of_two_workers(build, fake, monkeypatch)
    expected = tokens(llm)
    begin(llm)
    llm.sleep()
    second = llm.llm_engine.model_executor.workers[1]
    chunk = second._sleeper._backups.saved["weights"].backup.store.get(0, 1000).numpy()
    chunk[5] ^= 1
    with pytest.raises(WakeUpError, match="damaged"):
        llm.wake_up()
    assert mapped(llm) == [set(), set()] and fake.counts()["handles"] == 0
    chunk[5] ^= 1
    llm.wake_up()
    assert end(llm) == expected
