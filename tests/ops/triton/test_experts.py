"""The mixture of experts in kernels against the golden one: experts of none and of many rows, here and elsewhere."""

import pytest
import torch

from lullm.config.layer.experts import ClampedGate, ExpertsConfig
from lullm.ops.experts.routing import Routes, route
from lullm.ops.experts.weights import ExpertSlots, ExpertWeights, Matrices
from lullm.ops.selection import REFERENCE_OPS
from lullm.ops.triton.device import IS_INTERPRETED, launch_device
from lullm.ops.triton.layer import experts as kernels
from lullm.ops.triton.table import INVARIANT_OPS, TRITON_OPS

DEVICE = launch_device()
# Triton's interpreter rounds to bfloat16 wrongly.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3} | ({} if IS_INTERPRETED else {torch.bfloat16: 3e-2})
SIZE, INNER = 40, 24


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def matrices(num, num_outputs, num_inputs, dtype, has_biases, seed):
    weights = [normal(num_outputs, num_inputs, seed=seed + i).div(num_inputs**0.5).to(dtype) for i in range(num)]
    biases = [normal(num_outputs, dtype=dtype, seed=seed + 90 + i) for i in range(num)] if has_biases else None
    return Matrices(weights, biases, [None] * num)


def mixture(num_experts=9, own=None, gate="silu", is_gated=True, has_biases=False, dtype=torch.float32):
    """Experts in a mixed order of slots, of which those of `own` are here."""
    own, order = own or range(num_experts), torch.randperm(num_experts, generator=torch.Generator().manual_seed(3))
    num_ups = 2 * INNER if is_gated else INNER
    gate_up = matrices(len(own), num_ups, SIZE, dtype, has_biases, 10)
    down = matrices(len(own), SIZE, INNER, dtype, has_biases, 30)
    return ExpertWeights(gate_up, down, gate, ExpertSlots(order, torch.ones_like(order), own.start), is_gated)


def on_device(weights):
    def moved(side):
        biases = side.biases and [bias.to(DEVICE) for bias in side.biases]
        return Matrices([weight.to(DEVICE) for weight in side.weights], biases, side.layouts)

    slots = ExpertSlots(weights.slots.of_experts.to(DEVICE), weights.slots.load.to(DEVICE), weights.slots.first)
    return ExpertWeights(moved(weights.gate_up), moved(weights.down), weights.gate, slots, weights.is_gated)


def routes_of(num_rows, num_experts, num_used, seed=5):
    config = ExpertsConfig(num_experts, num_used, INNER, (True,))
    return route(normal(num_rows, num_experts, seed=seed) * 2, None, config)


def assert_like_reference(ops_experts, x, routes, weights, shared=None, shared_gate=None):
    given = on_device(weights)
    expected = REFERENCE_OPS.experts(x, routes, weights, shared, shared_gate)
    moved = [None if t is None else t.to(DEVICE) for t in (shared, shared_gate)]
    actual = ops_experts(x.to(DEVICE), Routes(*(t.to(DEVICE) for t in routes)), given, *moved)
    torch.testing.assert_close(actual.cpu(), expected, atol=TOLERANCE[x.dtype], rtol=TOLERANCE[x.dtype])
    assert torch.equal(given.slots.load.cpu(), weights.slots.load), "tokens are counted, by expert"


@pytest.mark.parametrize(
    ("num_rows", "version"),
    [
        (1, kernels.experts),
        (270, kernels.experts),
        (5, kernels.every_experts),
        (40, kernels.invariant_experts),
    ],
)
def test_few_rows_and_many(num_rows, version):
    """Of 270 an expert has more than the largest tile, and all pairs are more than a turn of the sort."""
    x = normal(num_rows, SIZE, seed=1)
    assert_like_reference(version, x, routes_of(num_rows, 9, 4), mixture(), normal(num_rows, SIZE, seed=2))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"gate": "gelu_tanh", "has_biases": True},
        {"gate": ClampedGate(1.7, 0.9), "has_biases": True},
        {"gate": "relu2", "is_gated": False},
    ],
    ids=["gelu", "clamped", "no gates"],
)
def test_kinds(options, dtype):
    x = normal(20, SIZE, dtype=dtype, seed=1)
    shared, gate = normal(20, SIZE, dtype=dtype, seed=2), normal(20, 1, dtype=dtype, seed=3)
    assert_like_reference(TRITON_OPS.experts, x, routes_of(20, 9, 2), mixture(dtype=dtype, **options), shared, gate)


@pytest.mark.parametrize("own", [range(3), range(3, 7), range(7, 9)], ids=str)
def test_a_worker_leaves_out_what_others_have(own):
    x = normal(11, SIZE, seed=1)
    assert_like_reference(TRITON_OPS.experts, x, routes_of(11, 9, 3), mixture(own=own))


def test_all_rows_choose_the_same():
    routes = Routes(torch.tensor([[2, 6]]).repeat(70, 1), torch.full((70, 2), 0.5))
    assert_like_reference(TRITON_OPS.experts, normal(70, SIZE, seed=1), routes, mixture())


def test_of_no_rows_and_of_rows_that_stand_apart():
    weights, routes = on_device(mixture()), Routes(*(t.to(DEVICE) for t in routes_of(6, 9, 2)))
    wide = normal(6, 3 * SIZE).to(DEVICE)[:, 5 : 5 + SIZE]
    expected = TRITON_OPS.experts(wide.contiguous(), routes, weights, None, None)
    assert torch.equal(TRITON_OPS.experts(wide, routes, weights, None, None), expected)
    assert TRITON_OPS.experts(wide[:0], Routes(*(t[:0] for t in routes)), weights, None, None).shape == (0, SIZE)


def test_bits_that_follow_no_batch():
    weights, routes, x = on_device(mixture()), routes_of(8, 9, 3), normal(8, SIZE, seed=1).to(DEVICE)

    def rows(some):
        return INVARIANT_OPS.experts(x[some], Routes(*(t[some].to(DEVICE) for t in routes)), weights, None, None)

    together = rows(slice(None))
    assert all(torch.equal(rows(slice(i, i + 1)), together[i : i + 1]) for i in range(8))
