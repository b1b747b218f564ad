"""Weights in mapped files: the same bits before, while and after they settle, in every instruction set."""

import ctypes

import pytest
import torch

from lullm.ops.cpu import native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.cpu.recording import call

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

LIBRARY = load_library()
GOES_ON = ctypes.c_int(1)


@pytest.fixture(autouse=True, params=LIBRARY.available_isas)
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


@pytest.fixture
def mapped():
    """`mapped(rows, *parts)`: a weight whose parts of these sizes lie elsewhere, and the same one packed."""
    places = []

    def make(source, *sizes):
        packed, place = source.clone(), torch.empty_like(source)
        native.pack_weight_(packed)
        for own, rows in zip(place.split(list(sizes)), source.split(list(sizes)), strict=True):
            call("lullm_map_rows", own, rows, *rows.shape, native.DTYPES[rows.dtype])
            places.append(own.data_ptr())
        make.sources.append(source)  # lives as long as it is read
        return place, packed

    make.sources, make.places = [], places
    yield make
    for at in places:
        call("lullm_forget_rows", at)


def settle(at, on_all_threads=True):
    call("lullm_settle_rows", at, ctypes.byref(GOES_ON), on_all_threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_rows", [1, 5, 70])
def test_bits_are_equal_before_while_and_after_settling(mapped, dtype, num_rows):
    draw = torch.Generator().manual_seed(num_rows)
    weight, packed = mapped(torch.randn(320, 128, generator=draw).to(dtype), 64, 96, 160)
    halves, packed_halves = mapped(torch.randn(256, 128, generator=draw).to(dtype), 128, 128)
    x, bias = torch.randn(num_rows, 128, generator=draw).to(dtype), torch.randn(320, generator=draw).to(dtype)
    ids = torch.randint(0, 320, (num_rows,), generator=draw)

    def results(weight, halves):
        gated = native.gated_linear(x, halves, bias[:256], "silu"), native.gated_linear(x, halves, None, "gelu")
        return *gated, native.linear(x, weight, bias), native.logits(x, weight), native.embedding(ids, weight)

    expected = results(packed, packed_halves)
    for at in [None, mapped.places[1], mapped.places[4], mapped.places[0], mapped.places[2], mapped.places[3]]:
        if at is not None:
            settle(at, on_all_threads=at != mapped.places[1])
        assert all(map(torch.equal, results(weight, halves), expected))
    assert torch.equal(weight, packed) and torch.equal(halves, packed_halves)


def test_a_stopped_settling_goes_on_where_it_was(mapped):
    weight, packed = mapped(torch.randn(64, 64), 64)
    call("lullm_settle_rows", weight, ctypes.byref(ctypes.c_int(0)), False)
    x = torch.randn(2, 64)
    assert not torch.equal(weight, packed) and torch.equal(
        native.linear(x, weight, None), native.linear(x, packed, None)
    )
    settle(weight.data_ptr(), on_all_threads=False)
    settle(weight.data_ptr())
    assert torch.equal(weight, packed)
