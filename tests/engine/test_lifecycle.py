"""Every state of an engine x every call -> where it is then; deeper sleep; what fails leaves a state that works."""

import resource
from types import SimpleNamespace

import pytest
import torch
from kit.engine.parts import (
    arenas_of,
    backups_of,
    checkpoint_moved,
    device_of,
    executor_of,
    model_of,
    weights_filled_by,
)
from kit.engine.prompts import random_prompts

from lullm import LLM, SamplingParams
from lullm.engine.lifecycle import TRANSITIONS
from lullm.errors import EngineAsleepError, InvalidRequestError, LullmError, SleepError, WakeUpError
from lullm.types.sleep import KV_CACHE, WEIGHTS, Residence, SleepForecast

PARAMS = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
PROMPT = random_prompts(1, 60)[0]
W, KV = [WEIGHTS], [KV_CACHE]


@pytest.fixture(scope="module")
def llm(qwen3_folder):
    with LLM(str(qwen3_folder), dtype="float32", max_model_len=128, enable_sleep_mode=True) as llm:
        yield llm


@pytest.fixture(autouse=True)
def awake_again(llm):
    yield
    for request_id in llm.llm_engine.unfinished_request_ids():
        llm.llm_engine.abort_request(request_id, wants_output=False)
    llm.sleep(2)
    llm.wake_up()


# Where the weights and the KV cache are: R resident, O offloaded, D discarded; '*': paused.
ENTER = {
    "RR": lambda llm: None,
    "RR*": lambda llm: llm.sleep(0),
    "OO": lambda llm: llm.sleep(1),
    "DD": lambda llm: llm.sleep(2),
    "OR": lambda llm: llm.sleep(1, tags=W),
    "RO": lambda llm: llm.sleep(1, tags=KV),
    "DR": lambda llm: llm.sleep(2, tags=W),
    "RD": lambda llm: llm.sleep(2, tags=KV),
    "OD": lambda llm: (llm.sleep(1), llm.sleep(2, tags=KV)),
    "DO": lambda llm: (llm.sleep(1), llm.sleep(2, tags=W)),
}
CALLS = {
    "sleep 0": lambda llm: llm.sleep(0),
    "sleep 1": lambda llm: llm.sleep(1),
    "sleep 2": lambda llm: llm.sleep(2),
    "wake": lambda llm: llm.wake_up(),
    "wake w": lambda llm: llm.wake_up(W),
    "wake kv": lambda llm: llm.wake_up(KV),
    "generate": lambda llm: llm.generate([5, 6], PARAMS.replace(max_tokens=1), use_tqdm=False),
    "update": lambda llm: llm.update_weights([("model.norm.weight", torch.ones(64))]),
    "push": lambda llm: model_of(llm).load_weights([("model.norm.weight", torch.ones(64))]),
    "reload": lambda llm: llm.collective_rpc("reload_weights"),
    "reset": lambda llm: llm.reset_prefix_cache(),
    "explain": lambda llm: llm.explain_sleep(2),
}
NO = "EngineAsleepError"
OUTCOMES = """
       sleep 0  sleep 1  sleep 2  wake  wake w  wake kv  generate  update  push  reload  reset  explain
RR     RR*      OO       DD       RR    RR      RR       RR        RR      RR    RR      RR     RR
RR*    RR*      OO       DD       RR    RR      RR       NO        RR*     RR*   RR*     RR*    RR*
OO     OO       OO       DD       RR    RO      OR       NO        NO      NO    NO      OO     OO
DD     DD       DD       DD       RR    RD      DR       NO        NO      NO    NO      DD     DD
OR     OR       OO       DD       RR    RR      OR       NO        NO      NO    NO      OR     OR
RO     RO       OO       DD       RR    RO      RR       NO        RD      RO    RD      RO     RO
DR     DR       DO       DD       RR    RR      DR       NO        NO      NO    NO      DR     DR
RD     RD       OD       DD       RR    RD      RR       NO        RD      RD    RD      RD     RD
OD     OD       OD       DD       RR    RD      OR       NO        NO      NO    NO      OD     OD
DO     DO       DO       DD       RR    RO      DR       NO        NO      NO    NO      DO     DO
"""


def read_outcomes():
    header, *rows = [line for line in OUTCOMES.splitlines() if line]
    starts = [header.index(f" {call}") + 1 for call in CALLS]
    for row in rows:
        for call, start in zip(CALLS, starts, strict=True):
            yield row.split()[0], call, row[start:].split()[0]


def state_of(llm):
    residence = llm.llm_engine.lifecycle._residence
    return residence[WEIGHTS].name[0] + residence[KV_CACHE].name[0] + "*" * (llm.sleep_state == "paused")


@pytest.mark.parametrize(("state", "call", "outcome"), list(read_outcomes()))
def test_every_call_in_every_state(llm, state, call, outcome):
    ENTER[state](llm)
    assert state_of(llm) == state
    assert llm.is_sleeping() == (state != "RR")
    if outcome == "NO":
        with pytest.raises(EngineAsleepError, match="wake_up"):
            CALLS[call](llm)
        outcome = state
    else:
        CALLS[call](llm)
    assert state_of(llm) == outcome
    words = {"RR": "awake", "RR*": "paused", "OO": "weights_offloaded", "OD": "weights_offloaded"}
    words |= {"DD": "discard_all", "DO": "discard_all"}
    assert llm.sleep_state == words.get(outcome, "partial")
    assert llm.sleeping_tags == tuple(tag for tag, where in zip((*W, *KV), outcome[:2], strict=True) if where != "R")


def test_the_table_of_transitions_is_complete():
    assert set(TRANSITIONS) == {(r, call) for r in Residence for call in ("sleep 1", "sleep 2", "wake_up")}


def targets_of(llm):
    return {tag: backup.target for tag, backup in backups_of(llm).items()}


def test_sleep_goes_deeper(llm, monkeypatch):
    """A changed weight and a running request make both tags worth a backup."""
    expected = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
    engine, weight = llm.llm_engine, model_of(llm).model.norm.weight
    engine.add_request("x", PROMPT, PARAMS)
    for _ in range(3):
        engine.step()
    model_of(llm).load_weights([("model.norm.weight", weight.clone())])
    engine.step()
    report = llm.sleep(1, backup="ram")
    assert targets_of(llm) == {WEIGHTS: "ram", KV_CACHE: "ram"}
    assert llm.sleep(1).tags == llm.sleep(1, backup="ram").tags == (), "there is nothing left to do"
    forecast = llm.explain_sleep(1, tags=W, backup="disk")
    assert (forecast.tags, forecast.backs_up_bytes, forecast.frees_bytes) == ((WEIGHTS,), weight.nbytes, weight.nbytes)
    forecast = llm.explain_sleep(2)
    assert (forecast.backs_up_bytes, forecast.frees_bytes) == (0, report.backed_up_bytes)
    assert llm.explain_sleep(1) == SleepForecast(1, (), 0, 0, 0.0, 0.0)
    moved = llm.sleep(1, tags=W, backup="disk")
    assert targets_of(llm) == {WEIGHTS: "disk", KV_CACHE: "ram"} and moved.backed_up_bytes == weight.nbytes
    moved = llm.sleep(1, backup="disk")
    assert targets_of(llm) == {WEIGHTS: "disk", KV_CACHE: "disk"}
    assert moved.backed_up_bytes == report.backed_up_bytes - weight.nbytes
    llm.sleep(1, tags=KV, backup="ram")
    assert targets_of(llm) == {WEIGHTS: "disk", KV_CACHE: "ram"}, "and back"
    restored = llm.wake_up()
    assert restored.tags == (WEIGHTS, KV_CACHE) and restored.seconds > 0
    assert restored.restored_bytes > report.backed_up_bytes
    assert llm.wake_up().tags == ()
    assert targets_of(llm) == {}
    sizes = []
    launch = executor_of(engine).launch_model
    with monkeypatch.context() as patch:
        patch.setattr(executor_of(engine), "launch_model", lambda plan: sizes.append(plan.num_tokens) or launch(plan))
        engine.step()
    assert sizes == [1], "nothing was computed again"
    llm.sleep(1)
    llm.sleep(2)
    assert targets_of(llm) == {}, "given up"
    llm.wake_up()
    assert llm.collective_rpc("modified_weights") == [[]]
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[-1].outputs[0].token_ids == expected, "computed again, from the checkpoint's weights"


@pytest.mark.parametrize("backup", ["ram", "disk"])
def test_a_damaged_backup_can_be_given_up(llm, backup):
    expected = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
    engine = llm.llm_engine
    engine.add_request("x", PROMPT, PARAMS)
    engine.step()
    llm.sleep(1, backup=backup)
    flip_a_bit(llm, KV_CACHE)
    with pytest.raises(WakeUpError, match=r"damaged.*sleep\(level=2, tags=\['kv_cache'\]\)"):
        llm.wake_up()
    assert state_of(llm) == "OO"
    with pytest.raises(SleepError, match="nothing was released: .*damaged"):
        llm.sleep(1, backup="disk" if backup == "ram" else "ram")
    with pytest.raises(WakeUpError, match="damaged"):
        llm.wake_up()
    llm.sleep(2, tags=KV)
    llm.wake_up()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[-1].outputs[0].token_ids == expected, "computed again"


@pytest.mark.parametrize("backup", ["ram", "disk"])
def test_damaged_changed_weights_are_found(llm, backup):
    model_of(llm).load_weights([("model.norm.weight", torch.full((64,), 1.5))])
    llm.sleep(1, backup=backup)
    flip_a_bit(llm, WEIGHTS)
    with pytest.raises(WakeUpError, match="damaged"):
        llm.wake_up()
    assert state_of(llm) == "OO"
    assert not any(p.any() for p in model_of(llm).parameters()), "released again"


def flip_a_bit(llm, tag):
    backup = backups_of(llm)[tag]
    store = backup.store
    if store.target == "ram":
        with torch.inference_mode():
            store._chunks[0][100] ^= 4
        return
    store._set_direct(False)
    store._file.seek(100)
    byte = store._file.read(1)
    store._file.seek(100)
    store._file.write(bytes([byte[0] ^ 4]))


def test_a_forecast_refuses_what_the_sleep_refuses(llm, monkeypatch):
    llm.llm_engine.add_request("x", PROMPT, PARAMS)
    llm.llm_engine.step()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    for call in (llm.explain_sleep, llm.sleep):
        with pytest.raises(SleepError, match="nothing was released: .* must be saved and .* has 10 B left; give"):
            call(1, backup="disk")
    assert state_of(llm) == "RR"


def test_no_room_to_save_or_to_move(llm, tmp_path):
    """The limit on a file's size stands for a full disk."""
    expected = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
    engine = llm.llm_engine
    engine.add_request("x", PROMPT, PARAMS)
    engine.step()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(SleepError, match="nothing was released: .*File too large; give another sleep_dir"):
            llm.sleep(1, backup="disk")
        assert state_of(llm) == "RR"
        engine.step()
        llm.sleep(1, backup="ram")
        with pytest.raises(SleepError, match="nothing was released: .*File too large; give another sleep_dir"):
            llm.sleep(1, backup="disk")
        assert state_of(llm) == "OO" and targets_of(llm) == {KV_CACHE: "ram"}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    llm.wake_up()
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[-1].outputs[0].token_ids == expected


def test_in_front_of_a_device_host_memory_keeps_all_weights(llm, monkeypatch):
    """There 'auto' is RAM, and the checkpoint is not read again. The device is the host, which says it were none."""
    monkeypatch.setattr(device_of(llm), "is_accelerator", True, raising=False)
    with torch.no_grad():
        before = {name: p.clone() for name, p in model_of(llm).named_parameters()}
    forecast = llm.explain_sleep()
    report = llm.sleep()
    assert report.backed_up_bytes == forecast.backs_up_bytes == sum(p.nbytes for p in before.values())
    assert targets_of(llm) == {WEIGHTS: "ram"}
    assert not any(p.any() for p in model_of(llm).parameters())
    with weights_filled_by(llm, None):
        llm.wake_up()
    assert all(torch.equal(p, before[name]) for name, p in model_of(llm).named_parameters())
    llm.sleep(backup="disk")
    assert targets_of(llm) == {}, "the checkpoint is a backup on disk"
    llm.wake_up()
    assert all(torch.equal(p, before[name]) for name, p in model_of(llm).named_parameters())


def test_what_cannot_fit_is_seen_before_anything_is_written(llm, monkeypatch):
    engine = llm.llm_engine
    engine.add_request("x", PROMPT, PARAMS)
    engine.step()
    monkeypatch.setattr("lullm.worker.sleep.saving.available_memory_bytes", lambda: 1000)
    with pytest.raises(SleepError, match="nothing was released: .* must be saved and memory has 1000 B left"):
        llm.sleep(1, backup="ram")
    assert state_of(llm) == "RR"
    engine.step()


def test_a_failed_map_leaves_it_asleep(llm, monkeypatch):
    arenas = arenas_of(llm)

    def refuse():
        raise WakeUpError("out of memory")

    for tag in (WEIGHTS, KV_CACHE):
        llm.sleep(1)
        with monkeypatch.context() as patch:
            patch.setattr(arenas[tag], "map_in_parts", refuse)
            with pytest.raises(WakeUpError, match=f"{tag} still asleep: out of memory"):
                llm.wake_up()
            assert state_of(llm) == "OO" and not arenas[WEIGHTS].mapped_bytes, "it cannot work without both"
            with pytest.raises(EngineAsleepError):
                llm.generate([5], use_tqdm=False)
        llm.wake_up()
        assert state_of(llm) == "RR"


def test_memory_that_is_not_taken_back(llm, monkeypatch):
    expected = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
    arenas = arenas_of(llm)

    def refuse():
        raise LullmError("is it locked?")

    with monkeypatch.context() as patch:
        patch.setattr(arenas[WEIGHTS], "release", refuse)
        with pytest.raises(SleepError, match="asleep, but .*locked"):
            llm.sleep(1)
    assert state_of(llm) == "OO"
    llm.wake_up()
    assert llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids == expected


def test_a_reload_that_fails_puts_the_weights_to_sleep(llm, tmp_path):
    expected = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids
    with checkpoint_moved(llm, tmp_path):
        with pytest.raises(LullmError, match="lacks the weight files"):
            llm.collective_rpc("reload_weights")
        assert state_of(llm) == "DR"
        with pytest.raises(WakeUpError, match="lacks the weight files"):
            llm.wake_up()
    llm.wake_up()
    assert llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids == expected


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), KeyboardInterrupt()], ids=repr
)
def test_a_reload_that_breaks_off_leaves_no_mixed_weights(llm, monkeypatch, error):
    """Whatever ended it: a thread that could not start once left an engine awake with half of the weights packed."""
    expected = llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids

    def break_off(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("lullm.worker.loaded_model.pack_weights", break_off)
        with pytest.raises(type(error)):
            llm.collective_rpc("reload_weights")
    assert state_of(llm) == "DR"
    llm.wake_up()
    assert llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids == expected


def test_misuse(llm):
    for arguments, param in (
        ({"backup": "tape"}, "backup"),
        ({"level": 2, "keep_prefix_cache": True}, "keep_prefix_cache"),
        ({"level": True}, "level"),
        ({"tags": "weights"}, "tags"),
    ):
        for call in (llm.sleep, llm.explain_sleep):
            with pytest.raises(InvalidRequestError) as error:
                call(**arguments)
            assert error.value.param == param
    assert state_of(llm) == "RR"


def test_a_backup_that_is_dropped_while_waking_is_no_sleep(llm, caplog):
    """The weights have changed since the blocks were saved. The log once said "asleep" in the middle of a wake-up."""
    llm.llm_engine.add_request("x", PROMPT, PARAMS)
    llm.llm_engine.step()
    llm.sleep(1)
    llm.wake_up(W)
    model_of(llm).load_weights([("model.norm.weight", torch.ones(64))])
    with caplog.at_level("INFO", logger="lullm"):
        llm.wake_up()
    lines = [record.getMessage() for record in caplog.records]
    assert "the saved KV cache is dropped: the weights have changed since" in lines
    assert lines[-1].startswith("awake (kv_cache): 0 B restored") and not any("asleep" in line for line in lines)
