"""Products of one and two rows against float64, and which operands they take."""

import pytest
import torch
from torch.nn import functional as F

from lullm.ops.triton import elementwise
from lullm.ops.triton.device import IS_INTERPRETED, launch_device
from lullm.ops.triton.product import few_rows
from lullm.ops.triton.tile import FewRowsTile

DEVICE = launch_device()
DTYPES = [torch.float16] + ([] if IS_INTERPRETED else [torch.bfloat16])
SHAPES = [(1, 1), (33, 40), (96, 512), (130, 1100)]


def random(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(params=["shipped", "many programs"])
def tile(request, monkeypatch):
    """'many programs': masks of the last one, and several iterations."""
    if request.param == "many programs":
        monkeypatch.setattr(few_rows, "few_rows_tile", lambda *_: FewRowsTile(16, 256, 4))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [0, 1, 2])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_products(tile, num_outputs, num_inputs, num_rows, dtype):
    x, bias = random(num_rows, num_inputs, dtype=dtype), random(num_outputs, dtype=dtype, seed=2)
    weight = random(num_outputs, num_inputs, dtype=dtype, seed=1) / num_inputs**0.5
    expected = x.double() @ weight.double().T
    given = x.to(DEVICE), weight.to(DEVICE)
    assert few_rows.is_served(*given)
    torch.testing.assert_close(elementwise.linear(*given, None).cpu(), expected.to(dtype), atol=2e-3, rtol=2e-3)
    with_bias = elementwise.linear(*given, bias.to(DEVICE)).cpu()
    torch.testing.assert_close(with_bias, (expected + bias.double()).to(dtype), atol=2e-3, rtol=2e-3)
    logits = elementwise.logits(*given)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.cpu(), expected.float(), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize(("size", "num_inputs"), [(1, 1), (33, 40), (130, 700)])
def test_gated_products_round_as_a_product_and_an_activation_do(tile, size, num_inputs, num_rows, dtype):
    x, bias = random(num_rows, num_inputs, dtype=dtype), random(2 * size, dtype=dtype, seed=2)
    weight = random(2 * size, num_inputs, dtype=dtype, seed=1) / num_inputs**0.5
    for b in (None, bias):
        gate, up = F.linear(x, weight, b).float().chunk(2, dim=-1)
        expected = (F.silu(gate) * up).to(dtype)
        actual = elementwise.gated_linear(x.to(DEVICE), weight.to(DEVICE), None if b is None else b.to(DEVICE), "silu")
        torch.testing.assert_close(actual.cpu(), expected, atol=4e-3, rtol=4e-3)
    other = elementwise.gated_linear(x.to(DEVICE), weight.to(DEVICE), None, "gelu_tanh").cpu()
    gate, up = F.linear(x, weight).float().chunk(2, dim=-1)
    torch.testing.assert_close(other, (F.gelu(gate, approximate="tanh") * up).to(dtype), atol=4e-3, rtol=4e-3)


def test_rows_that_stand_apart_and_what_is_cublas_own():
    weight = random(8, 64, dtype=torch.float16, seed=1).to(DEVICE)
    wide = random(2, 200, dtype=torch.float16).to(DEVICE)
    whole = elementwise.linear(wide[:, 8:72].contiguous(), weight, None)
    assert torch.equal(elementwise.linear(wide[:, 8:72], weight, None), whole)
    x = wide[:, :64]
    assert not few_rows.is_served(torch.cat([x, x]), weight), "four rows"
    assert not few_rows.is_served(x.float(), weight.float()), "float32"
    assert not few_rows.is_served(x, weight[:, :].T.contiguous().T), "a weight of columns"
    long = torch.zeros(2, few_rows.MAX_INPUTS_OF_TWO + 8, dtype=torch.float16, device=DEVICE)
    assert not few_rows.is_served(long, long) and few_rows.is_served(long[:1], long), "two long rows do not pay"


def test_a_row_has_the_same_bits_alone_and_beside_another():
    x, weight = random(2, 300, dtype=torch.float16).to(DEVICE), random(50, 300, dtype=torch.float16, seed=1).to(DEVICE)
    both = few_rows.product(x, weight, None, torch.float32)
    for row in (0, 1):
        assert torch.equal(few_rows.product(x[row : row + 1], weight, None, torch.float32)[0], both[row])


def test_the_interpreter_runs_few_programs(monkeypatch):
    if not IS_INTERPRETED:
        pytest.skip("a GPU is here")
    grids = []

    class Watched:
        def __getitem__(self, grid):
            grids.append(grid)
            return few_rows_kernel[grid]

    few_rows_kernel = few_rows.FEW_ROWS
    monkeypatch.setattr(few_rows, "FEW_ROWS", Watched())
    few_rows.product(random(1, 256, dtype=torch.float16), random(2048, 256, dtype=torch.float16, seed=1), None)
    assert grids == [(1,)]
