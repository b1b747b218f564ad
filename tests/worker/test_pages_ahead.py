"""Memory of KV blocks, taken before they are used. Counted in resident bytes and page faults, never in seconds."""

import ctypes
import resource

import pytest

from lullm import EngineConfig, SamplingParams
from lullm.engine.llm_engine import LLMEngine
from lullm.machine import pages
from lullm.units import MIB
from lullm.worker import pages_ahead

PARAMS = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
BLOCKS = 65536  # of 16 tokens in 4 tensors of 32 MiB: a block is 512 bytes of each, a huge page of one holds 4,096


@pytest.fixture
def build(qwen3_folder):
    made = []

    def make(**options):
        config = {"num_gpu_blocks_override": BLOCKS, "max_model_len": 64, "dtype": "float32"} | options
        made.append(LLMEngine(EngineConfig(model=str(qwen3_folder), **config)))
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown()


def resident(engine):
    return engine.model_executor.driver_worker.resident_bytes()["kv_cache"]


def touch_all(engine):
    num_calls = 1
    while engine.touch_ahead():
        num_calls += 1
    return num_calls


def answer(engine, prompt=(5, 6, 7)):
    engine.add_request("x", list(prompt), PARAMS)
    while engine.has_unfinished_requests():
        [output] = engine.step() or [None]
    return output.outputs[0].token_ids


def test_what_the_next_prompt_needs_is_there_and_no_more(build):
    engine = build(preemption_mode="recompute")
    num_tensors = 2 * engine.model_config.num_hidden_layers
    assert resident(engine) == 0, "a start alone takes none"
    assert touch_all(engine) >= num_tensors / pages_ahead._PAGES_AT_ONCE
    taken = resident(engine)
    # A tensor's piece of these few blocks lies in one huge page, or at the border of two.
    assert num_tensors * 2 * MIB <= taken <= num_tensors * 4 * MIB
    answer(engine, range(5, 60))
    assert resident(engine) == taken
    assert touch_all(engine) == 1 and resident(engine) == taken


def test_no_page_fault_of_a_write_is_left():
    """As many bytes as a prompt writes, on pages taken ahead."""
    address = pages.reserve(16 * MIB)
    pages.prefer_huge(address, 16 * MIB)
    ctypes.memset(address, 7, 100)
    assert pages.populate(address, 16 * MIB)
    assert ctypes.string_at(address, 101) == b"\7" * 100 + b"\0", "what a page holds stays"
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for start in range(0, 16 * MIB, 4096):
        ctypes.memset(address + start, 1, 1)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 16, "4,096 without populate and huge pages"
    pages.free(address, 16 * MIB)
    assert not pages.populate(address - address % 4096, 4096), "no memory there"


def test_what_blocks_hold_stays(build):
    engine = build()
    expected = answer(engine, range(5, 60))
    touch_all(engine)
    assert answer(engine, range(5, 60)) == expected
    assert engine.stats().prefix_cache_hits_total > 0, "the second answer has read what the first has written"


def test_a_sleep_gives_it_back_and_an_idle_engine_takes_it_again(build):
    engine = build(enable_sleep_mode=True, preemption_mode="recompute")
    touch_all(engine)
    taken = resident(engine)
    report = engine.sleep()
    assert resident(engine) == 0 and report.freed_bytes >= taken
    engine.wake_up()
    assert resident(engine) == 0, "waking takes none"
    touch_all(engine)
    assert resident(engine) == taken


def test_none_is_taken_where_memory_is_scarce(build, monkeypatch):
    engine = build(preemption_mode="recompute")
    monkeypatch.setattr(pages_ahead, "available_memory_bytes", lambda: 7 * 2 * MIB)
    assert not engine.touch_ahead() and resident(engine) == 0


def test_a_system_that_cannot_is_asked_once(build, monkeypatch):
    engine = build(preemption_mode="recompute")
    asked = []
    monkeypatch.setattr(pages_ahead, "populate", lambda *page: asked.append(page))
    assert not engine.touch_ahead() and len(asked) == 1


def test_none_is_taken_while_no_descriptor_is_left_to_ask_with(build):
    """A server's clients can have all of them. It ended the engine, and asked for a mount of /proc."""
    engine = build(preemption_mode="recompute")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert not engine.touch_ahead() and resident(engine) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert engine.touch_ahead()
