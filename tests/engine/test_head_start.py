"""The head start: what is begun for which config, where the weights lie then, what a failed start leaves behind."""

import ctypes
import gc
import threading

import pytest

from lullm import LLM, EngineConfig, SamplingParams
from lullm.engine.start import head_start as module
from lullm.engine.start.head_start import _anything_is_frozen, head_start
from lullm.errors import LullmError
from lullm.machine import pages
from lullm.machine.memory import resident_bytes_within
from lullm.machine.memory_ahead import MemoryAhead
from lullm.ops.cpu.library import load_library
from lullm.units import MIB

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
OPTIONS = {"num_gpu_blocks_override": 32, "max_model_len": 128}


@pytest.fixture
def made(monkeypatch):
    """[(bytes to touch, MemoryAhead)] of all head starts; small models get one, too."""
    found = []

    def make(num_bytes, room_bytes, touch):
        found.append((num_bytes, MemoryAhead(num_bytes, room_bytes + MIB, touch)))
        return found[-1][1]

    monkeypatch.setattr(module, "MemoryAhead", make)
    monkeypatch.setattr(module, "_LEAST_BYTES", 0)
    return found


def answer(llm):
    return llm.generate([[5, 6, 7]], PARAMS, use_tqdm=False)[0].outputs[0].token_ids


def weights_of(llm):
    return llm.llm_engine.model_executor.driver_worker.loaded.arena


def test_the_weights_lie_in_the_memory_taken_ahead(made, qwen3_folder, monkeypatch):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        expected = answer(llm)
    taken = []
    take = MemoryAhead.take
    monkeypatch.setattr(MemoryAhead, "take", lambda self, n: taken.append(take(self, n)) or taken[-1])
    with LLM(str(qwen3_folder), **OPTIONS, enable_sleep_mode=True) as llm:
        assert weights_of(llm).base_address == taken[0] is not None
        assert taken[1:] == [None] * len(taken[1:]), "other arenas have memory of their own"
        assert answer(llm) == expected
        assert llm.sleep().tags == ("weights", "kv_cache")
        assert llm.llm_engine.model_executor.driver_worker.resident_bytes()["weights"] == 0
        llm.wake_up()
        assert answer(llm) == expected
    assert len(made) == 2 and all(ahead._address is None for _, ahead in made)


@pytest.mark.parametrize(
    ("options", "share"), [({}, 1), ({"dtype": "bfloat16"}, 0.5), ({"quantization": "int4"}, 0.125)], ids=str
)
def test_so_much_is_touched(made, qwen3_folder, options, share):
    """The checkpoint is float32."""
    stored = (qwen3_folder / "model.safetensors").stat().st_size
    with head_start(EngineConfig(model=str(qwen3_folder), **options)):
        pass
    assert [num_bytes for num_bytes, _ in made] == [int(stored * share)]


@pytest.mark.parametrize(
    "options",
    [
        {"model": "demo"},
        {"model": "./no-such-folder"},
        {"load_format": "dummy"},
        {"device": "cuda"},
        {"max_model_len": 10**6},
    ],
    ids=str,
)
def test_no_head_start(made, qwen3_folder, options):
    with head_start(EngineConfig(**{"model": str(qwen3_folder)} | options)) as ahead:
        assert ahead is None
    assert not made


def test_a_small_model_needs_none(qwen3_folder):
    with head_start(EngineConfig(model=str(qwen3_folder))) as ahead:
        assert ahead is None


def test_memory_that_is_not_there_is_not_touched(made, qwen3_folder, monkeypatch):
    monkeypatch.setattr(module, "available_memory_bytes", lambda: 1000)
    with head_start(EngineConfig(model=str(qwen3_folder))) as ahead:
        assert ahead is None


@pytest.mark.parametrize("is_native", [True, False])
def test_touched_in_one_call(is_native, monkeypatch):
    """Native code returns to the interpreter once, not after each of 4 steps; and it leaves what the range holds."""
    if not is_native:
        monkeypatch.setattr(module, "load_library", lambda: None)
    elif load_library() is None:
        pytest.skip("no native ops")
    address, steps = pages.reserve(64 * MIB), []
    zero = pages.zero
    monkeypatch.setattr(pages, "zero", lambda *step: (steps.append(step), zero(*step)))
    ctypes.memset(address + 5 * MIB, 7, 100)
    touch = module._touch()
    touch(address, 64 * MIB, ctypes.c_int(0))
    assert resident_bytes_within(address, 64 * MIB) <= 2 * MIB, "nobody wants it"
    touch(address, 64 * MIB, ctypes.c_int(1))
    assert resident_bytes_within(address, 64 * MIB) == 64 * MIB
    assert len(steps) == (0 if is_native else 4)
    assert ctypes.string_at(address + 5 * MIB, 1) == (b"\7" if is_native else b"\0")
    pages.free(address, 64 * MIB)


def test_a_start_that_fails_leaves_nothing(made, qwen3_folder, tmp_path):
    for file in qwen3_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(LullmError, match="damaged or incomplete"):
        LLM(str(tmp_path))
    [(_, ahead)] = made
    assert ahead._address is None and not ahead._thread.is_alive()
    assert "lullm-memory" not in [thread.name for thread in threading.enumerate()]
    assert gc.isenabled()


@pytest.fixture
def counts(monkeypatch):
    """Elsewhere in the suite nobody counts what is frozen."""
    monkeypatch.setattr(module, "_anything_is_frozen", _anything_is_frozen)


@pytest.fixture
def unfrozen(counts):
    """A server's start in this process may have frozen what was there."""
    gc.unfreeze()


@pytest.mark.parametrize("is_collecting", [True, False])
@pytest.mark.usefixtures("unfrozen")
def test_the_collector_stands_still_meanwhile(is_collecting):
    (gc.enable if is_collecting else gc.disable)()
    try:
        with head_start(EngineConfig()):
            assert not gc.isenabled()
        assert gc.isenabled() is is_collecting and not gc.get_freeze_count()
    finally:
        gc.enable()


@pytest.mark.usefixtures("unfrozen")
def test_no_round_follows_at_once():
    """It would take as long as those that were left out: 0.08 s."""
    before = gc.get_stats()[2]["collections"]
    with head_start(EngineConfig()):
        kept = [[] for _ in range(200_000)]
    kept.append([])
    assert gc.get_stats()[2]["collections"] == before and not gc.get_freeze_count()


@pytest.mark.usefixtures("counts")
def test_what_others_have_frozen_stays_frozen():
    gc.freeze()
    try:
        with head_start(EngineConfig()):
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
