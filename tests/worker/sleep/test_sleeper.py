"""Sleep of a device's memory, over the fake driver: released memory faults, and copies run when they are waited for."""

import pytest
import torch
from kit.engine.parts import backups_of, store_of, worker_of

from lullm import SamplingParams
from lullm.arena.backup import Backup
from lullm.errors import LullmError, SleepError, WakeUpError
from lullm.types.sleep import KV_CACHE, WEIGHTS, SleepCommand, UsedBlocks

pytest.importorskip("triton")

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
PROMPTS = [[5 + i, 6, 7, 8 * i + 3] * 6 for i in range(4)]
COPIES = ("cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2")


def tokens(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def num_copies(fake):
    """(out, in), since the last call."""
    names = fake.names()
    fake.reset()
    return tuple(map(names.count, COPIES))


def test_weights_stay_in_host_memory_until_they_change(build, fake):
    llm = build()
    expected, num_weights = tokens(llm), store_of(llm).num_bytes
    fake.reset()
    assert llm.sleep().backed_up_bytes == num_weights
    assert num_copies(fake)[0] > 0 and fake.counts()["handles"] == 0
    assert llm.wake_up().restored_bytes == num_weights and num_copies(fake)[1] > 0
    assert tokens(llm) == expected
    forecast = llm.explain_sleep()
    assert forecast.backs_up_bytes == 0 and forecast.frees_bytes > num_weights
    fake.reset()
    assert llm.sleep().backed_up_bytes == 0
    assert num_copies(fake) == (0, 0), "they are there"
    llm.wake_up()
    assert tokens(llm) == expected
    num_pins = fake.counts()["pins"]
    llm.update_weights([("model.norm.weight", torch.full((64,), 0.5))])
    changed = tokens(llm)
    fake.reset()
    assert llm.sleep().backed_up_bytes == num_weights
    assert num_copies(fake)[0] > 0 and fake.counts()["pins"] == num_pins - 1, "in the same memory; kv_swap sleeps"
    llm.wake_up()
    assert tokens(llm) == changed
    assert fake.counts()["pins"] == num_pins
    llm.sleep(level=2)
    assert fake.counts()["pins"] == 0, "another kind of sleep gives it back"
    llm.wake_up()
    assert tokens(llm) == expected


def test_a_forecast_looks_whether_the_memory_has_room(build, monkeypatch):
    """It promised a sleep that then failed."""
    llm = build()
    before = llm.explain_sleep(backup="ram")
    monkeypatch.setattr("lullm.worker.sleep.saving.available_memory_bytes", lambda: before.backs_up_bytes // 2)
    for call in (llm.explain_sleep, llm.sleep):
        with pytest.raises(SleepError, match="must be saved and memory has .* left; give backup='disk'"):
            call(backup="ram")
    assert llm.explain_sleep(backup="disk").backs_up_bytes == llm.explain_sleep(level=2).backs_up_bytes == 0
    assert not llm.is_sleeping()


def test_a_forecast_says_what_pinning_costs(build):
    """The first sleep of 16 GB pins for seconds and copies for 0.3; the next one finds the memory."""
    llm = build()
    num_weights, speeds = store_of(llm).num_bytes, worker_of(llm)._sleeper._speeds
    speeds._speeds = {"save ram": 1e15, "restore ram": 1e15, "release": 1e15, "pin": num_weights / 7.0}
    assert llm.explain_sleep().sleep_seconds == pytest.approx(7.0, abs=0.1)
    seen = []
    speeds.observe = lambda what, num_bytes, seconds: seen.append((what, num_bytes > 0, seconds))
    llm.sleep()
    llm.wake_up()
    assert llm.explain_sleep().sleep_seconds < 0.1, "it stays pinned"
    llm.sleep()
    found = [(what, took_some) for what, took_some, _ in seen]
    assert found.count(("pin", True)) == 1 and found.count(("pin", False)) == 1
    assert all(seconds > 0 for what, took_some, seconds in seen if what == "save ram" and took_some)


def test_memory_that_was_pinned_ahead_is_what_the_first_sleep_copies_into(build, fake):
    """Its forecast has no pinning any more, and it pins nothing."""
    llm = build(pin_backup=True)
    expected, sleeper = tokens(llm), worker_of(llm)._sleeper
    sleeper._backups._ahead.result(timeout=30)
    sleeper._speeds._speeds |= {"save ram": 1e15, "restore ram": 1e15, "release": 1e15, "pin": 1.0}
    fake.reset()
    forecast = llm.explain_sleep()
    assert forecast.backs_up_bytes == store_of(llm).num_bytes and forecast.sleep_seconds < 1.0
    assert llm.sleep().backed_up_bytes == store_of(llm).num_bytes
    assert "cuMemHostRegister_v2" not in fake.names()
    llm.wake_up()
    assert tokens(llm) == expected


def test_memory_that_is_not_to_be_had_ahead_is_the_sleeps_own_matter(build, fake, caplog):
    """The first sleep takes it, or another kind of sleep needs none."""
    llm = build()
    expected = tokens(llm)
    fake.fail("cuMemHostRegister_v2", 1, 2)
    worker_of(llm)._sleeper.pin_ahead()
    assert llm.sleep(level=2).tags and "was not taken ahead" in caplog.text
    llm.wake_up()
    worker_of(llm)._sleeper.pin_ahead()
    llm.sleep(level=2)
    assert fake.counts()["pins"] == 0, "a sleep of another kind gives it back"
    llm.wake_up()
    worker_of(llm)._sleeper.pin_ahead()  # and so does the engine's end
    assert tokens(llm) == expected


def test_nothing_is_kept_if_nobody_wants_it(build, fake):
    llm = build(keep_backup=False)
    expected = tokens(llm)
    awake = fake.counts()["pins"]
    for _ in range(2):
        assert llm.sleep().backed_up_bytes > 0
        llm.wake_up()
        assert fake.counts()["pins"] == awake
    assert tokens(llm) == expected


@pytest.mark.parametrize("backup", ["ram", "disk"])
def test_running_requests_go_on(build, backup):
    llm = build()
    expected = tokens(llm)
    engine = llm.llm_engine
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, GREEDY)
    done, steps = {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                done[int(output.request_id)] = output.outputs[0].token_ids
        steps += 1
        if steps in (5, 12):
            engine.sleep(level=1, backup=backup)
            engine.wake_up()
    assert [done[number] for number in range(len(PROMPTS))] == expected


def test_a_backup_is_verified_every_time(build):
    llm = build()
    expected = tokens(llm)
    llm.sleep()
    llm.wake_up()
    llm.sleep()
    chunk = backups_of(llm)["weights"].store.get(0, 1000).numpy()
    chunk[5] ^= 1
    with pytest.raises(WakeUpError, match="damaged"):
        llm.wake_up()
    chunk[5] ^= 1
    llm.wake_up()
    assert tokens(llm) == expected


def fail_after(monkeypatch, num_good):
    """Every save but the first `num_good` finds the disk full."""
    save, calls = Backup.save, []

    def limited(backup, *args, **options):
        calls.append(backup)
        if len(calls) > num_good:
            raise OSError(28, "No space left on device")
        return save(backup, *args, **options)

    monkeypatch.setattr(Backup, "save", limited)


@pytest.mark.parametrize("backup", ["ram", "disk"])
def test_a_failed_save_loses_nothing_that_was_kept(build, fake, backup):
    """The weights stand in host memory since the last sleep; saving the KV blocks fails."""
    llm = build()
    expected = tokens(llm)
    llm.sleep()
    llm.wake_up()
    num_pins = fake.counts()["pins"]
    engine = llm.llm_engine
    engine.add_request("x", PROMPTS[0], GREEDY)
    engine.step()
    with pytest.MonkeyPatch.context() as patch:
        fail_after(patch, 0)
        with pytest.raises(SleepError, match="nothing was released: .*No space"):
            llm.sleep(backup=backup)
    assert not llm.is_sleeping() and fake.counts()["pins"] == num_pins
    engine.abort_request("x", wants_output=False)
    assert llm.sleep().backed_up_bytes == 0, "the weights are still there"
    llm.wake_up()
    assert tokens(llm) == expected


@pytest.mark.parametrize(
    "words, kind",
    [
        ("CUDA error: an illegal memory access was encountered", RuntimeError),
        ("CUDA error: out of memory", SleepError),
        ("can't start new thread", SleepError),
    ],
)
def test_only_what_lacks_memory_is_told_as_a_lack_of_memory(build, fake, monkeypatch, words, kind):
    llm = build()
    expected = tokens(llm)

    def broken(*args, **options):
        raise RuntimeError(words)

    before = fake.counts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Backup, "save", broken)
        with pytest.raises(kind, match=words) as told:
            worker_of(llm).prepare_sleep(SleepCommand(1, ((WEIGHTS, "offload"),), UsedBlocks([], [])))
    assert told.type is kind and fake.counts() == before
    assert tokens(llm) == expected


def test_a_failed_save_over_stale_weights_keeps_their_memory_alone(build, fake):
    llm = build()
    num_weights = store_of(llm).num_bytes
    llm.sleep()
    llm.wake_up()
    num_pins = fake.counts()["pins"]
    llm.update_weights([("model.norm.weight", torch.full((64,), 0.5))])
    changed = tokens(llm)
    with pytest.MonkeyPatch.context() as patch:
        fail_after(patch, 0)
        with pytest.raises(SleepError, match="nothing was released: .*No space"):
            llm.sleep()
    assert tokens(llm) == changed and fake.counts()["pins"] == num_pins
    assert llm.sleep().backed_up_bytes == num_weights, "what is in there is of no use"
    llm.wake_up()
    assert tokens(llm) == changed


def test_a_cancelled_sleep_leaves_what_was_kept(build, fake):
    """Another worker's save has failed after this one's had succeeded."""
    llm = build()
    llm.sleep()
    llm.wake_up()
    before = fake.counts()
    worker = worker_of(llm)
    command = SleepCommand(1, ((WEIGHTS, "offload"), (KV_CACHE, "offload")), UsedBlocks([1, 2, 3], []))
    worker.prepare_sleep(command)
    assert fake.counts()["pins"] == before["pins"] + 1, "of the blocks"
    worker.cancel_sleep()
    worker.cancel_sleep()
    assert fake.counts() == before
    with pytest.raises(LullmError, match="prepare_sleep first"):
        worker.commit_sleep()
    assert llm.sleep().backed_up_bytes == 0
    llm.wake_up()
