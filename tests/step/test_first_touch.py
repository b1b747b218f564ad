"""Memory of KV blocks, taken before the ops that write them. Counted in resident bytes and pages, never in seconds."""

import ctypes

import numpy as np
import pytest
import torch

from lullm.machine import pages
from lullm.machine.memory import resident_bytes_within
from lullm.ops.cpu.library import absence, load_library
from lullm.step.first_touch import FirstTouch
from lullm.units import MIB

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

BLOCKS, BLOCK_BYTES = 40, MIB // 4  # a tensor of 10 MiB, of 16 tokens a block


@pytest.fixture
def memory():
    """Two tensors of blocks, 1 MiB behind the beginning of a huge page, and what is resident of each."""
    address = pages.reserve(64 * MIB)
    first = -(-address // pages.HUGE_PAGE) * pages.HUGE_PAGE
    pages.prefer_huge(first, 48 * MIB)
    places = [first + MIB, first + 21 * MIB]
    rows = [(ctypes.c_char * (BLOCKS * BLOCK_BYTES)).from_address(place) for place in places]
    sides = [torch.frombuffer(row, dtype=torch.uint8).view(BLOCKS, BLOCK_BYTES) for row in rows]
    yield sides, lambda: [resident_bytes_within(place, BLOCKS * BLOCK_BYTES) // MIB for place in places]
    pages.free(address, 64 * MIB)


@pytest.fixture
def touched(monkeypatch):
    """How many pages each call has touched."""
    found, handle = [], load_library().handle
    call = handle.lullm_touch_pages
    monkeypatch.setattr(handle, "lullm_touch_pages", lambda *args: (found.append(args[1]), call(*args)))
    return found


def slots(*block_ids):
    return np.array([[16 * block_id + 3 for block_id in block_ids]])


def test_each_page_is_taken_once_when_its_first_block_is_written(memory, touched):
    sides, resident = memory
    sides[0][2, 5] = 7
    touch = FirstTouch(sides, 16, (1,))
    touch.before_writing(slots(0, 2, 1))
    assert resident() == [1, 1], "what the first page holds of each"
    touch.before_writing(slots(1, 3))
    touch.before_writing(slots(2))
    assert touched == [2], "its other blocks need nothing"
    touch.before_writing(slots(4, 20))
    assert resident() == [7, 7] and touched == [2, 6]
    touch.before_writing(slots(39))
    assert resident() == [10, 10] and touched == [2, 6, 4], "the last page ends with the tensor"
    assert sides[0][2, 5] == 7


def test_groups_that_share_blocks_and_groups_of_states(memory, touched):
    """A group's block ids are multiplied by its shares; states have no slots."""
    sides, resident = memory
    touch = FirstTouch(sides, 16, (4, 1, 1))
    touch.before_writing(np.concatenate([slots(4 * 2), slots(3), np.array([[-1]])]))
    assert resident() == [1, 1]
    touch.before_writing(np.concatenate([slots(4 * 4), slots(3), np.array([[-1]])]))
    assert resident() == [3, 3]
    FirstTouch(sides, 16, (1,)).before_writing(np.array([[-1, -1]]))
    assert len(touched) == 2


def test_an_engine_takes_it_before_it_writes(qwen3_folder, touched):
    from lullm import LLM, SamplingParams

    options = {"num_gpu_blocks_override": 64, "max_model_len": 128, "preemption_mode": "recompute"}
    with LLM(str(qwen3_folder), **options) as llm:
        assert not touched
        for _ in range(2):
            llm.generate([[5] * 40], SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
        assert len(touched) == 1 and touched[0] >= 2 * llm.llm_engine.model_config.num_hidden_layers


@pytest.mark.parametrize("tags", [["kv_cache"], ["weights"]])
def test_memory_that_a_sleep_has_released_is_taken_again(qwen3_folder, touched, tags):
    from lullm import LLM, SamplingParams

    options = {"num_gpu_blocks_override": 64, "max_model_len": 128, "preemption_mode": "recompute"}
    with LLM(str(qwen3_folder), enable_sleep_mode=True, **options) as llm:
        for _ in range(2):
            llm.generate([[5] * 40], SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
            llm.sleep(1, tags=tags)
            llm.wake_up()
    assert len(touched) == (2 if tags == ["kv_cache"] else 1) and len(set(touched)) == 1
