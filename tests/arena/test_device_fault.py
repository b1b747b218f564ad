"""Drivers that fail: what an error says, what is rolled back, and that nothing leaks on the way."""

import gc
import logging
import sys

import pytest
import torch

from lullm.arena.arena import Arena, ArenaState
from lullm.arena.driver.cuda import cuda_backend
from lullm.arena.driver.npu import npu_backend
from lullm.arena.driver.rocm import rocm_backend
from lullm.errors import CacheSizeError, LullmError, UnsupportedError, WakeUpError
from lullm.units import MIB


@pytest.mark.parametrize("step", ["create", "map", "set_access"])
@pytest.mark.parametrize("nth", [1, 3])
def test_a_failed_wake_up_rolls_back(fake, kind, names, out_of_memory, step, nth):
    function = getattr(names, step) or names.map  # where mapping gives access
    step = step if getattr(names, step) else "map"
    arena = Arena(fake.build(kind, chunk_bytes=2 * MIB), "weights", 8 * MIB)
    tensor = arena.empty((8,), torch.float32)
    arena.release()
    fake.reset()
    fake.fail(function, nth, out_of_memory)
    with pytest.raises(WakeUpError) as caught:
        arena.map()
    text = str(caught.value)
    assert f"{function} (to " in text and f"failed with {out_of_memory}: " in text and "2.0 MiB" in text
    assert "'weights' stays released" in text and "free memory of the" in text
    assert isinstance(caught.value.__cause__, CacheSizeError)
    assert arena.state is ArenaState.RELEASED
    assert fake.counts()["handles"] == fake.counts()["mappings"] == 0 and fake.counts()["ranges"] == 1
    # What was mapped before goes in reverse order, after the way back inside the failed chunk.
    calls = fake.names(names.make_current)
    way_back = calls[calls.index(function, [i for i, n in enumerate(calls) if n == function][nth - 1]) + 1 :]
    inside = {"create": [], "map": [names.release], "set_access": [names.unmap, names.release]}[step]
    assert way_back == inside + [names.unmap, names.release] * (nth - 1)
    unmapped = [call[1] for call in fake.calls() if call[0] == names.unmap]
    assert unmapped == sorted(unmapped, reverse=True)
    arena.map()  # the next attempt finds everything as it was
    assert tensor.fill_(1).sum() == 8


@pytest.mark.parametrize("step", ["reserve", "create", "map"])
def test_an_arena_that_cannot_be_made_leaves_nothing(fake, kind, names, out_of_memory, step):
    backend = fake.build(kind, chunk_bytes=2 * MIB)
    fake.fail(getattr(names, step), 1, out_of_memory)
    with pytest.raises(
        CacheSizeError, match=f"no arena of 4.0 MiB of .* memory for 'kv_cache': {getattr(names, step)} "
    ):
        Arena(backend, "kv_cache", 4 * MIB)
    gc.collect()
    assert {**fake.counts(), "contexts": 0} == dict.fromkeys(fake.counts(), 0)


def test_what_an_error_code_becomes(fake, kind, names, out_of_memory):
    backend = fake.build(kind)
    for code, expected in (
        (out_of_memory, CacheSizeError),
        (names.unsupported, UnsupportedError),
        (7, LullmError),
    ):
        fake.fail(names.reserve, 1, code)
        words = "out of memory" if (kind, code) == ("rocm", 2) else "the fake driver's words"
        with pytest.raises(LullmError, match=f"reserve 2.0 MiB\\) failed with {code}: .*{words}") as caught:
            Arena(backend, "weights", 1)
        assert type(caught.value) is expected


def test_a_refused_release_keeps_what_it_refused(fake, kind, names, caplog):
    arena = Arena(fake.build(kind, chunk_bytes=2 * MIB), "weights", 6 * MIB)
    tensor = arena.empty((6 * MIB,), torch.uint8).fill_(9)
    fake.reset()
    fake.fail(names.unmap, 2, 7)
    with pytest.raises(LullmError, match=f"'weights' is not released: 2.0 MiB could not be released: {names.unmap}"):
        arena.release()
    assert arena.state is ArenaState.PARTLY and arena.mapped_bytes == 2 * MIB
    assert (tensor[2 * MIB : 4 * MIB] == 9).all()
    arena.release()
    assert arena.state is ArenaState.RELEASED and fake.counts()["handles"] == 0

    arena.map()
    tensor.fill_(8)
    fake.reset()
    fake.fail(names.release, 1, 7)  # unmapped already: it is mapped again, contents and all
    with pytest.raises(LullmError, match=f"could not be released: {names.release}"):
        arena.release()
    assert arena.mapped_bytes == 2 * MIB and (tensor[: 2 * MIB] == 8).all()
    again = [names.unmap, names.release, names.map] + [names.set_access] * bool(names.set_access)
    assert fake.names(names.make_current)[: len(again)] == again

    fake.reset()
    fake.fail(names.unmap, 1, 7)
    with caplog.at_level(logging.ERROR, "lullm"):
        arena.close()  # has nobody to refuse to, and says so
    assert "closing the arena 'weights'" in caplog.text
    caplog.clear()  # a record keeps the error, and with it everything its frames knew
    assert arena.state is ArenaState.CLOSED
    del tensor
    gc.collect()  # the last pointer into the range tries again


def test_no_driver(kind, tmp_path):
    builder = {"cuda": cuda_backend, "rocm": rocm_backend, "npu": npu_backend}[kind]
    with pytest.raises(UnsupportedError, match="no .* driver on this machine .*libnone.so"):
        builder(library=tmp_path / "libnone.so")
    with pytest.raises(UnsupportedError, match="this .* driver has no .*; it is too old"):
        builder(library=sys.modules["_ctypes"].__file__)


def test_a_torch_without_the_device(fake, kind):
    def refuse(*device):
        raise AssertionError("Torch not compiled with it")

    with pytest.raises(UnsupportedError, match="this torch cannot use the .* device \\(Torch not compiled with it\\)"):
        fake.build(kind, initialize=refuse)
