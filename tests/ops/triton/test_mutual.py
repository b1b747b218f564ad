"""Attention of rows that see each other against the golden one."""

from dataclasses import replace

import pytest
import torch

from lullm.ops import reference
from lullm.ops.attention_layout import MutualScores
from lullm.ops.triton.device import IS_INTERPRETED, launch_device
from lullm.ops.triton.layer import mutual
from lullm.ops.triton.tile import PrefillTile

DEVICE = launch_device()
DTYPES = [torch.float32, torch.float16] + ([] if IS_INTERPRETED else [torch.bfloat16])
# Query heads, key/value heads, elements of a head, rows of each span, reach.
CASES = {
    "one row": (2, 2, 16, [1], None),
    "ragged": (4, 2, 32, [33, 1, 16, 17, 40], None),
    "whole tiles": (1, 1, 16, [32, 16], None),
    "heads of 72": (2, 2, 72, [20, 5], None),
    "within reach": (2, 1, 16, [50, 3, 1, 33], 7),
    "reach beyond a tile": (1, 1, 16, [70], 20),
    "none but itself": (1, 1, 16, [20, 3], 0),
    "reach of all": (1, 1, 16, [18], 40),
}


def make_case(name, dtype):
    num_heads, num_kv_heads, size, lens, reach = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    width = (num_heads + 2 * num_kv_heads) * size
    qkv = torch.randn(sum(lens), width, generator=generator).to(dtype).unflatten(-1, (-1, size)).to(DEVICE)
    q, k, v = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)  # parts of longer rows
    return q, k, v, lens, MutualScores(size**-0.5, reach)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_cases(name, dtype):
    q, k, v, *more = make_case(name, dtype)
    actual = mutual.mutual_attention(q, k, v, *more)
    assert actual.dtype == dtype
    bound = 4e-6 if dtype == torch.float32 else 4e-3 if dtype == torch.float16 else 2e-2
    expected = reference.mutual_attention(q.cpu(), k.cpu(), v.cpu(), *more)
    torch.testing.assert_close(actual.cpu(), expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["ragged", "within reach"])
def test_a_bias(name, dtype):
    q, k, v, lens, scores = make_case(name, dtype)
    dims = q.shape[1], max(lens) + 3, max(lens) + 4
    bias = torch.randn(dims, generator=torch.Generator().manual_seed(1)).to(dtype)[:, 1:, 2:]
    actual = mutual.mutual_attention(q, k, v, lens, replace(scores, bias=bias.to(DEVICE))).cpu()
    expected = reference.mutual_attention(q.cpu(), k.cpu(), v.cpu(), lens, replace(scores, bias=bias))
    bound = 4e-6 if dtype == torch.float32 else 4e-3 if dtype == torch.float16 else 2e-2
    torch.testing.assert_close(actual, expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("size", [32, 64])
def test_tiles_of_unequal_sides(monkeypatch, size):
    monkeypatch.setattr(mutual, "mutual_tile", lambda *_: PrefillTile(16, size, 4, 1))
    q, k, v, *more = make_case("ragged", torch.float32)
    actual = mutual.mutual_attention(q, k, v, *more)
    torch.testing.assert_close(actual.cpu(), reference.mutual_attention(q.cpu(), k.cpu(), v.cpu(), *more))


def test_a_span_has_the_same_bits_in_any_batch():
    q, k, v, lens, scores = make_case("ragged", torch.float32)
    whole = mutual.mutual_attention(q, k, v, lens, scores).split(lens)
    for part, *alone in zip(whole, *(x.split(lens) for x in (q, k, v)), strict=True):
        assert torch.equal(part, mutual.mutual_attention(*alone, [len(part)], scores))


def test_heads_that_do_not_lie_one_behind_the_other_and_no_rows():
    q, k, v, *more = make_case("ragged", torch.float32)
    apart = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    assert torch.equal(mutual.mutual_attention(*apart, *more), mutual.mutual_attention(q, k, v, *more))
    assert mutual.mutual_attention(q[:0], k[:0], v[:0], [], MutualScores(1.0)).shape == (0, 4, 32)
