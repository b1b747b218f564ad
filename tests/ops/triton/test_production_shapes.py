"""The cases of a row of `gpu-check`: at full size on a GPU, scaled down through the interpreter."""

import functools

import pytest
import torch
from gpu_parts.case.attention import AttentionCase, all_cases, expected_of, new_step, worst_row
from gpu_parts.case.draw import SMALL_VOCAB_SIZE
from gpu_parts.correctness import BOUNDS, all_checks

from lullm.ops.selection import REFERENCE_OPS
from lullm.ops.triton import tile
from lullm.ops.triton.device import IS_INTERPRETED, launch_device

DEVICE = launch_device()
CHECKS = {name: check for group in all_checks(IS_INTERPRETED) for name, check in group}
USUAL = ", bfloat16, heads 32/8, D 128"
QUICK = {
    *(kind + USUAL for kind in ("decode", "decode alone", "prefill", "chunk", "short chunk", "mixed")),
    *(f"{kind}{USUAL}, window 1024" for kind in ("decode", "chunk", "short chunk")),
    *(f"{kind}{USUAL}, fp8 cache" for kind in ("decode alone", "short chunk")),
    f"decode{USUAL}, beyond 2^31",
    f"mixed{USUAL}, batch-invariant",
    "decode alone, bfloat16, heads 28/4, D 128",
    "short chunk, bfloat16, heads 28/4, D 128",
    "decode alone, float16, heads 32/8, D 64",
    "decode, bfloat16, heads 32/8, D 64, window 1024, soft cap and sinks",
    "drawing, peaked rows of 151936",
    "drawing, flat rows of 151936",
    *(name for name in CHECKS if "rows" in name and "drawing" not in name),
    "block copy",
    "writes and copies beyond 2^31",
}
"""Of the interpreter; a GPU runs all."""


def is_slow(name):
    return IS_INTERPRETED and name not in QUICK


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if is_slow(n) else n for n in CHECKS])
def test_like_float32(name):
    found_by(name)


@functools.cache
def found_by(name):
    """What the check of this case gives, or its AssertionError."""
    return CHECKS[name](DEVICE)


def test_the_quick_ones_exist():
    assert set(CHECKS) >= QUICK and len(CHECKS) > 70


def open_turns(case, block_rows, block_keys):
    """The most turns without a mask of a tile: of keys that all its rows see."""
    group, found = case.heads[0] // case.heads[1], 0
    tile_len = max(block_rows // group, 1)
    for query_len, context_len in case.shape:
        if query_len > 1:
            first = context_len - query_len + (query_len - 1) // tile_len * tile_len
            begin = 0 if case.window is None else -(-max(context_len - case.window, 0) // block_keys)
            found = max(found, (first + 1) // block_keys - begin)
    return found


def test_small_cases_take_every_path_that_the_full_ones_take():
    shipped, interpreted = tile._PREFILL["sm90", 2, 128], tile._INTERPRETED_PREFILL
    for case in all_cases():
        small = case.small()
        assert len(small.shape) == len(case.shape)
        assert [q == 1 for q, _ in small.shape] == [q == 1 for q, _ in case.shape]
        if case.spans in ("prefill", "chunk", "short chunk", "mixed"):
            assert open_turns(case, shipped.block_rows, shipped.block_keys) > 2, case.name
            assert open_turns(small, interpreted.block_rows, interpreted.block_keys) > 2, case.name
        if case.num_spare_blocks:
            for found in (case, small):
                values = found.num_spare_blocks * found.block_size * found.heads[1] * found.head_size
                assert values >= 1 << 31


@pytest.mark.skipif(not IS_INTERPRETED, reason="its lengths are those of the interpreter")
def test_a_context_is_cut_and_a_flat_row_overflows():
    parts = {kind: found_by(f"{kind}{USUAL}") for kind in ("decode alone", "short chunk")}
    assert parts["decode alone"]["decode_parts"] > 2 and parts["short chunk"]["prefill_parts"] > 1
    assert 2 * tile.SAMPLING_BLOCK < SMALL_VOCAB_SIZE
    assert found_by("drawing, flat rows of 151936")["overflows"] >= 3


def test_the_reference_is_the_golden_one():
    """Head by head, some rows at a time, with a window and scales: as the ops' own definition has it."""
    for case in (AttentionCase("mixed", cache="fp8"), AttentionCase("chunk", window=1024)):
        step = new_step(case.small(), torch.device("cpu"))
        expected = REFERENCE_OPS.attention(step.q, step.cache, step.layout, step.scores)
        assert worst_row(expected, expected_of(step)) < 1e-5


@pytest.mark.parametrize("fault", ["a key left out", "a row of another span", "no number"])
def test_what_is_wrong_is_seen(fault):
    """At full length: the bound of bfloat16 is below what one of 8,192 keys does to a row."""
    step = new_step(AttentionCase("decode alone", heads=(8, 2)), torch.device("cpu"))
    expected = expected_of(step)
    if fault == "a key left out":
        step.slots[0] = step.slots[0][1:]
        wrong = expected_of(step)
    else:
        wrong = expected.roll(1, 1) if fault == "a row of another span" else expected.clone()
        wrong[0, 3, 5] = wrong[0, 3, 5] if fault == "a row of another span" else float("nan")
    assert worst_row(wrong, expected) > BOUNDS[torch.bfloat16]
    rounded = expected.to(torch.bfloat16)
    assert worst_row(rounded, expected) < BOUNDS[torch.bfloat16] / 2
