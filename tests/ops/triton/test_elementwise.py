"""Norms and the gated activation against the golden versions."""

import pytest
import torch

from lullm.ops.selection import REFERENCE_OPS
from lullm.ops.triton import elementwise
from lullm.ops.triton.device import IS_INTERPRETED, launch_device

DEVICE = launch_device()
DTYPES = [torch.float32, torch.float16] + ([] if IS_INTERPRETED else [torch.bfloat16])
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def random(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual, expected):
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual.cpu(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (33, 80), (3, 3000), (0, 64), (5, 7, 128)], ids=str)
def test_rms_norm(shape, dtype):
    x, weight = random(*shape, dtype=dtype) * 3, random(shape[-1], dtype=dtype, seed=1)
    given = x.to(DEVICE)
    actual = elementwise.rms_norm(given, weight.to(DEVICE), 1e-6)
    assert_close(actual, REFERENCE_OPS.rms_norm(x, weight, 1e-6))
    assert torch.equal(given.cpu(), x)


def test_rms_norm_of_rows_that_stand_apart():
    x, weight = random(4, 200, dtype=torch.float32), random(64, dtype=torch.float32, seed=1)
    actual = elementwise.rms_norm(x.to(DEVICE)[:, 8:72], weight.to(DEVICE), 1e-6)
    assert_close(actual, REFERENCE_OPS.rms_norm(x[:, 8:72], weight, 1e-6))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (9, 80)], ids=str)
def test_add_rms_norm(shape, dtype):
    x, residual = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    weight = random(shape[1], dtype=dtype, seed=2)
    expected = REFERENCE_OPS.add_rms_norm(x, residual, weight, 1e-6)
    actual = elementwise.add_rms_norm(x.to(DEVICE), residual.to(DEVICE), weight.to(DEVICE), 1e-6)
    assert_close(actual[0], expected[0])
    assert_close(actual[1], expected[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (7, 160), (2, 6000), (0, 64)], ids=str)
def test_silu_mul(shape, dtype):
    gate_up = random(*shape, dtype=dtype) * 5
    gate, up = gate_up.float().chunk(2, dim=-1)
    assert_close(elementwise.silu_mul(gate_up.to(DEVICE)), (gate * torch.sigmoid(gate) * up).to(dtype))


def test_gated_linear():
    x, weight, bias = (random(*s, dtype=torch.float32, seed=len(s)) for s in ((5, 33), (48, 33), (48,)))
    for b in (None, bias):
        actual = elementwise.gated_linear(x.to(DEVICE), weight.to(DEVICE), None if b is None else b.to(DEVICE), "silu")
        torch.testing.assert_close(actual.cpu(), REFERENCE_OPS.gated_linear(x, weight, b, "silu"), atol=2e-5, rtol=2e-5)


def test_logits_are_float32():
    x, weight = random(5, 32, dtype=torch.float32), random(40, 32, dtype=torch.float32, seed=1)
    for dtype, bound in ((torch.float32, 2e-5), (torch.bfloat16, 2**-5)):
        actual = elementwise.logits(x.to(DEVICE, dtype), weight.to(DEVICE, dtype))
        gold = REFERENCE_OPS.logits(x.to(dtype), weight.to(dtype))
        assert actual.dtype == gold.dtype == torch.float32
        torch.testing.assert_close(actual.cpu(), gold, atol=bound * 4, rtol=bound)
