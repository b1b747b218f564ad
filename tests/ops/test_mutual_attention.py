"""Attention of rows that see each other, each version against the golden one."""

from dataclasses import replace

import pytest
import torch

from lullm.ops import reference, torch_cpu
from lullm.ops.attention_layout import MutualScores
from lullm.ops.cpu import native_attention

# Query heads, key/value heads, elements of a head, rows of each span, reach.
CASES = {
    "one row": (2, 2, 64, [1], None),
    "few rows": (4, 4, 32, [3, 1, 2], None),
    "one long span": (2, 2, 64, [700], None),
    "more than a piece": (2, 1, 16, [1100], None),
    "ragged": (4, 2, 64, [64, 65, 1, 130, 130, 17], None),
    "windows of one size": (2, 2, 80, [64] * 5, None),
    "heads of 72": (2, 2, 72, [96, 20], None),
    "within reach": (2, 2, 64, [300, 40, 1], 16),
    "reach beyond a step": (4, 2, 32, [333], 100),
    "a reach of one": (2, 2, 16, [70, 2], 1),
    "none but itself": (2, 2, 16, [40], 0),
    "reach of a whole piece": (1, 1, 16, [2100], 1040),
}
VERSIONS = {"torch": torch_cpu.mutual_attention, "native": native_attention.mutual_attention}


def make_case(name, dtype):
    num_heads, num_kv_heads, size, lens, reach = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    width = (num_heads + 2 * num_kv_heads) * size
    qkv = torch.randn(sum(lens), width, generator=generator).to(dtype).unflatten(-1, (-1, size))
    q, k, v = qkv.split([num_heads, num_kv_heads, num_kv_heads], dim=1)  # parts of longer rows
    return q, k, v, lens, MutualScores(size**-0.5, reach)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_torch_agrees_with_the_golden_one(name, dtype):
    check(torch_cpu.mutual_attention, name, dtype)


@pytest.mark.pairs
@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_native_agrees_with_the_golden_one(name, dtype):
    check(native_attention.mutual_attention, name, dtype)


def check(version, name, dtype):
    case = make_case(name, dtype)
    expected, actual = reference.mutual_attention(*case), version(*case)
    assert actual.dtype == dtype
    # As in test_native.py: one rounding of the result, and in tiles one of each weight.
    bound = {torch.float32: 4e-6, torch.bfloat16: 2**-6}[dtype]
    torch.testing.assert_close(actual, expected, atol=bound, rtol=bound)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_span_has_the_same_bits_in_any_batch(dtype):
    q, k, v, lens, scores = make_case("ragged", dtype)
    whole = native_attention.mutual_attention(q, k, v, lens, scores).split(lens)
    for part, *alone in zip(whole, *(x.split(lens) for x in (q, k, v)), strict=True):
        assert torch.equal(part, native_attention.mutual_attention(*alone, [len(part)], scores))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["few rows", "ragged", "within reach", "reach beyond a step"])
def test_a_bias_by_places(version, dtype, name):
    """A span has the bits that it has alone, whose bias may come from a longer step."""
    q, k, v, lens, scores = make_case(name, dtype)
    attend, longest = VERSIONS[version], max(lens)
    bias = torch.randn(q.shape[1], longest, longest, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected, actual = (run(q, k, v, lens, replace(scores, bias=bias)) for run in (reference.mutual_attention, attend))
    bound = {torch.float32: 4e-6, torch.bfloat16: 2**-6}[dtype]
    torch.testing.assert_close(actual, expected, atol=bound, rtol=bound)
    alone = zip(*(x.split(lens) for x in (q, k, v)), lens, strict=True)
    parts = [attend(*rows, [length], replace(scores, bias=bias[:, :length, :length])) for *rows, length in alone]
    assert torch.equal(torch.cat(parts), actual)
