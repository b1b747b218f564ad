"""An engine over two real workers in one process: all of a sleep or nothing, and the tokens of one worker."""

import errno

import pytest
import torch
from kit.engine.parts import scheduler_of
from kit.engine.prompts import random_prompts
from kit.worker.fakes import ReplicaExecutor

from lullm import LLM, SamplingParams
from lullm.arena.backup import Backup
from lullm.errors import SleepError, WakeUpError

OPTIONS = {"dtype": "float32", "max_model_len": 128, "enable_sleep_mode": True}
PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
PROMPT = random_prompts(1, 60)[0]
NORM = "model.norm.weight"


@pytest.fixture
def expected(qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        return llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids


@pytest.fixture
def llm(qwen3_folder, monkeypatch):
    def open_executor(*args):
        return ReplicaExecutor(2, *args)

    monkeypatch.setattr("lullm.engine.llm_engine.open_executor", open_executor)
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        yield llm


def workers_of(llm):
    return llm.llm_engine.model_executor.workers


def resident_tags(llm):
    """Of each worker: arenas with memory behind them."""
    return [{tag for tag, size in worker.resident_bytes().items() if size} for worker in workers_of(llm)]


def start(llm):
    """A request that is running, and a changed weight, so that both tags must be saved."""
    norm = workers_of(llm)[0].model_runner.model.model.norm.weight.clone()
    assert llm.update_weights([(NORM, norm)]) == 1
    llm.llm_engine.add_request("x", PROMPT, PARAMS)
    for _ in range(3):
        llm.llm_engine.step()


def finish(llm):
    engine, outputs = llm.llm_engine, []
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[-1].outputs[0].token_ids


class FullDisk:
    """`Backup.save` fails from the given call on."""

    def __init__(self, monkeypatch, num_good):
        self.num_good = num_good
        save = Backup.save

        def limited(backup, *args, **options):
            self.num_good -= 1
            if self.num_good < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return save(backup, *args, **options)

        monkeypatch.setattr(Backup, "save", limited)


def test_the_same_tokens_from_two_workers(llm, expected):
    assert llm.generate(PROMPT, PARAMS, use_tqdm=False)[0].outputs[0].token_ids == expected
    assert llm.collective_rpc("weights_version") == [0, 0]
    assert llm.collective_rpc("reload_weights") == [None, None]
    assert llm.collective_rpc("weights_version") == [1, 1]


@pytest.mark.parametrize("num_good", range(4))
@pytest.mark.parametrize("backup", ["ram", "disk"])
def test_one_save_fails_and_all_are_as_they_were(llm, expected, num_good, backup):
    """Each worker saves weights and blocks: any of these four may be the one that fails."""
    start(llm)
    before = resident_tags(llm)
    num_blocks = llm.llm_engine.stats().num_used_blocks
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, num_good)
        with pytest.raises(SleepError, match="No space"):
            llm.sleep(1, backup=backup)
    assert not llm.is_sleeping() and resident_tags(llm) == before
    assert llm.llm_engine.stats().num_used_blocks == num_blocks and scheduler_of(llm).has_unfinished
    llm.llm_engine.step()
    report = llm.sleep(1, backup=backup)
    assert report.tags == ("weights", "kv_cache") and report.backed_up_bytes > 0
    assert not any("weights" in tags or "kv_cache" in tags for tags in resident_tags(llm))
    llm.wake_up()
    assert finish(llm) == expected, "nothing was lost"


def test_one_wake_up_fails_and_all_sleep(llm, expected):
    start(llm)
    llm.sleep(1, backup="ram")
    second = workers_of(llm)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second.loaded.store, "restore", lambda *args: (_ for _ in ()).throw(OSError("cannot be read")))
        with pytest.raises(WakeUpError, match="weights still asleep: cannot be read"):
            llm.wake_up()
    assert llm.llm_engine.sleeping_tags == ("weights", "kv_cache")
    assert not any("weights" in tags for tags in resident_tags(llm)), "the first worker's is released again"
    llm.wake_up()
    assert finish(llm) == expected


def test_weights_that_change_behind_the_engines_back_are_noticed(llm):
    start(llm)
    assert not llm.llm_engine.lifecycle.has_stale_kv
    for worker in workers_of(llm):
        worker.model_runner.model.load_weights([(NORM, torch.ones(64))])
    assert llm.llm_engine.lifecycle.has_stale_kv
    llm.llm_engine.step()
    assert not llm.llm_engine.lifecycle.has_stale_kv
    llm.collective_rpc(lambda worker: worker.update_weights([(NORM, torch.ones(64))]))
    assert llm.collective_rpc("weights_version") == [3, 3] and not llm.llm_engine.lifecycle.has_stale_kv
