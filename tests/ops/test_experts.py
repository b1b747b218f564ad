"""Routing and the mixture of experts: every version beside the golden one, in every instruction set; rows alone."""

from dataclasses import replace

import pytest
import torch

from lullm.config.layer.experts import ClampedGate, ExpertsConfig
from lullm.ops.cpu import native, native_experts
from lullm.ops.cpu.library import load_library
from lullm.ops.experts.routing import Routes, route
from lullm.ops.experts.weights import ExpertSlots, ExpertWeights, Matrices
from lullm.ops.quantized.weight import QuantizedLayout
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS

LIBRARY = load_library()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
ROUTERS = {
    "softmax": ExpertsConfig(num_experts=37, num_used=5, intermediate_size=1, layers=(True,)),
    "all": ExpertsConfig(num_experts=4, num_used=4, intermediate_size=1, layers=(True,), normalizes=False),
    "one of many": ExpertsConfig(num_experts=512, num_used=1, intermediate_size=1, layers=(True,), scale=2.5),
    "sigmoid, groups": ExpertsConfig(
        num_experts=48, num_used=4, intermediate_size=1, layers=(True,), scoring="sigmoid", scale=1.7,
        num_groups=6, num_used_groups=2, has_correction=True,
    ),
    "groups by their best": ExpertsConfig(
        num_experts=60, num_used=6, intermediate_size=1, layers=(True,), num_groups=10, num_used_groups=3,
        num_group_scores=1, normalizes=False,
    ),
}  # fmt: skip


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@DTYPES
@pytest.mark.parametrize("config", ROUTERS.values(), ids=ROUTERS)
def test_route(ops, config, dtype):
    """Bfloat16 products are often equal, and the first of equal experts is chosen."""
    products = (normal(300, config.num_experts) * 3).to(dtype)
    correction = normal(config.num_experts, seed=1) * 0.1 if config.has_correction else None
    found, expected = ops.route(products, correction, config), route(products, correction, config)
    assert found.experts.dtype == torch.int64 and found.shares.dtype == torch.float32
    assert torch.equal(found.experts, expected.experts)
    torch.testing.assert_close(found.shares, expected.shares, rtol=2e-6, atol=1e-7)
    for row in (0, 77, 299):
        alone = ops.route(products[row : row + 1], correction, config)
        assert ops is TORCH_CPU_OPS or torch.equal(alone.shares[0], found.shares[row])


@DTYPES
def test_factors_of_shares(ops, dtype):
    """Multiplied behind the normalization: they change no choice, and no sum to 1."""
    config = next(iter(ROUTERS.values()))
    products, factors = normal(40, config.num_experts).to(dtype), normal(config.num_experts, seed=1)
    plain, found = ops.route(products, None, config), ops.route(products, None, config, factors)
    assert torch.equal(found.experts, plain.experts)
    torch.testing.assert_close(found.shares, plain.shares * factors[plain.experts], rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("noise", [0.01, 0.2])
def test_one_expert_after_the_other(ops, noise):
    """As transformers' sparsemixer, with its shares by ascending expert."""
    modeling = pytest.importorskip("transformers.models.phimoe.modeling_phimoe")  # not under the emulator

    config = ExpertsConfig(7, 2, 1, (True,), scoring="sparsemixer", nearness=2 * noise)
    products = normal(40, 7)
    shares, experts = modeling.sparsemixer(products, jitter_eps=noise, training=False)
    found = ops.route(products, None, config)
    experts, order = experts.sort(-1)
    assert torch.equal(found.experts, experts)
    torch.testing.assert_close(found.shares, shares.gather(1, order))


def test_route_of_what_is_no_number(ops):
    config = ROUTERS["softmax"]
    products = torch.full((3, 37), torch.nan)
    products[1] = torch.inf
    products[2] = 0
    experts = ops.route(products, None, config).experts
    assert ((experts >= 0) & (experts < 37)).all() and (experts.diff(dim=1) > 0).all()
    assert experts[2].tolist() == [0, 1, 2, 3, 4]


def matrices(ops, num_experts, num_outputs, num_inputs, dtype, bits=None, bias=False, seed=1):
    """(for the golden version, for `ops`); both read the same numbers."""
    biases = [normal(num_outputs, dtype=dtype, seed=seed + 50 + i) for i in range(num_experts)] if bias else None
    gold, fast, layouts = [], [], []
    for i in range(num_experts):
        weight = normal(num_outputs, num_inputs, seed=seed + i) / num_inputs**0.5
        if bits is None or (bits == "some" and i % 2):
            gold.append(weight.to(dtype))
            fast.append(gold[-1].clone())
            ops.pack_weight_(fast[-1])
            layouts.append(None)
        else:
            layouts.append(QuantizedLayout(8 if bits == "some" else bits, num_outputs, num_inputs))
            gold.append(torch.zeros(layouts[-1].shape, dtype=torch.uint8))
            fast.append(gold[-1])
            ops.quantize_rows_(fast[-1], layouts[-1], 0, weight)
    return Matrices(gold, biases, layouts), Matrices(fast, biases, layouts)


# experts, used, hidden, intermediate: whole panels and tails; more rows of an expert than a block holds
SHAPES = {
    "panels": (6, 2, 64, 96),
    "halves share a panel": (5, 2, 96, 40),
    "nothing is packed": (4, 2, 70, 24),
    "few experts, deep": (2, 1, 1120, 64),
    "many experts": (40, 3, 32, 32),
}
KINDS = {
    "silu": ("silu", {}),
    "gelu_tanh, biases": ("gelu_tanh", {"bias": True}),
    "clamped, biases": (ClampedGate(alpha=1.3, limit=0.7), {"bias": True}),
    "int8": ("silu", {"bits": 8}),
    "int8 in some": ("silu", {"bits": "some"}),
    "int4, clamped": (ClampedGate(alpha=1.7, limit=0.9), {"bits": 4}),
    "no gates": ("relu2", {"is_gated": False}),
    "no gates, int8 in some": ("relu2", {"is_gated": False, "bits": "some"}),
    "no gates, int4": ("silu", {"is_gated": False, "bits": 4}),
}


def random_routes(num_rows, num_experts, num_used):
    generator = torch.Generator().manual_seed(3)
    ranks = torch.rand(num_rows, num_experts, generator=generator)
    ranks[:, 0] += 0.5  # the first expert has most rows, and the last may have none
    ranks[:, -1] -= 2
    experts = ranks.argsort(descending=True)[:, :num_used].sort().values
    return Routes(experts, torch.rand(num_rows, num_used, generator=generator))


def shuffled(weights, first=0, last=None):
    """The same experts in other slots; those from slot `first` to `last` are here."""
    order = torch.randperm(len(weights.slots), generator=torch.Generator().manual_seed(5))  # by slot
    numbers = order[first:last].tolist()

    def pick(matrices):
        biases = matrices.biases and [matrices.biases[number] for number in numbers]
        layouts = [matrices.layouts[number] for number in numbers]
        return Matrices([matrices.weights[number] for number in numbers], biases, layouts)

    slots = ExpertSlots(order.argsort(), torch.zeros_like(order), first)
    return ExpertWeights(pick(weights.gate_up), pick(weights.down), weights.gate, slots, weights.is_gated)


def cases(ops, shape, kind, dtype):
    num_experts, num_used, hidden, size = SHAPES[shape]
    gate, options = KINDS[kind]
    is_gated = options.get("is_gated", True)
    options = {name: value for name, value in options.items() if name != "is_gated"}
    ups = matrices(ops, num_experts, 2 * size if is_gated else size, hidden, dtype, **options)
    downs = matrices(ops, num_experts, hidden, size, dtype, seed=200, **options)
    gold = ExpertWeights(ups[0], downs[0], gate, ExpertSlots.in_order(num_experts), is_gated)
    fast = shuffled(ExpertWeights(ups[1], downs[1], gate, ExpertSlots.in_order(num_experts), is_gated))
    return gold, fast, lambda count: random_routes(count, num_experts, num_used), hidden


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_experts(ops, shape, kind, dtype):
    gold, fast, routes_of, hidden = cases(ops, shape, kind, dtype)
    for num_rows, has_shared in ((1, False), (3, True), (70, False)):
        x, routes = normal(num_rows, hidden, dtype=dtype, seed=9), routes_of(num_rows)
        shared = normal(num_rows, hidden, dtype=dtype, seed=10) if has_shared else None
        gate = normal(num_rows, 1, dtype=dtype, seed=11) if num_rows == 3 else None
        expected = REFERENCE_OPS.experts(x, routes, gold, shared, gate)
        found = ops.experts(x, routes, fast, shared, gate)
        assert found.dtype == dtype
        # Rounded up to four times on the way; quantized versions round rows of x as well.
        bound = {torch.float32: 2e-5 if not any(gold.down.layouts) else 1e-3, torch.bfloat16: 6e-2}[dtype]
        torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
        assert (found.float() - expected.float()).abs().mean() < bound / 8


@DTYPES
def test_workers_that_have_some_slots(ops, dtype):
    """Their results together are one worker's, and each counts the tokens of all experts."""
    gold, fast, routes_of, hidden = cases(ops, "panels", "silu", dtype)
    x, routes = normal(20, hidden, dtype=dtype, seed=9), routes_of(20)
    in_order = ExpertWeights(*(Matrices(m.weights, None, m.layouts) for m in _by_number(fast)), gold.gate, gold.slots)
    parts = [shuffled(in_order, 0, 2), shuffled(in_order, 2, 6)]
    found = sum(ops.experts(x, routes, part, None, None).float() for part in parts)
    expected = REFERENCE_OPS.experts(x, routes, gold, None, None).float()
    bound = {torch.float32: 2e-5, torch.bfloat16: 6e-2}[dtype]
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)
    for part in (gold, *parts):
        assert part.slots.load.tolist() == routes.experts.flatten().bincount(minlength=6).tolist()


def _by_number(weights):
    """The matrices by expert."""
    order = weights.slots.of_experts.tolist()
    for matrices in (weights.gate_up, weights.down):
        yield Matrices([matrices.weights[slot] for slot in order], None, [matrices.layouts[slot] for slot in order])


def test_no_rows(ops):
    _, fast, routes_of, hidden = cases(ops, "panels", "silu", torch.float32)
    assert ops.experts(torch.zeros(0, hidden), routes_of(0), fast, None, None).shape == (0, hidden)


@pytest.mark.skipif(LIBRARY is None, reason="the native ops are not built here")
def test_an_expert_that_is_none():
    _, fast, _, hidden = cases(NATIVE_CPU_OPS, "panels", "silu", torch.float32)
    for expert in (-1, 6):
        with pytest.raises(IndexError, match="outside the 6"):
            NATIVE_CPU_OPS.experts(
                torch.zeros(1, hidden), Routes(torch.tensor([[0, expert]]), torch.ones(1, 2)), fast, None, None
            )


@pytest.mark.parametrize("num_used", [1, 8, 16])
def test_pieces_are_equal_and_below_what_malloc_maps_anew(num_used):
    """32 MiB of results of 1,024 tokens were one piece, and 25,000 page faults in a prompt."""
    row_bytes = 1024 * num_used * 2
    step = native_experts._piece_len(2048, 2048 * row_bytes, 32)
    assert step * row_bytes < 32 << 20 and (2048 % step or step) > 0.9 * step


@pytest.mark.skipif(LIBRARY is None, reason="the native ops are not built here")
@DTYPES
@pytest.mark.parametrize("kind", ["silu", "clamped, biases", "int8", "int4, clamped"])
@pytest.mark.parametrize("shape", ["panels", "nothing is packed", "few experts, deep"])
def test_pieces_change_no_bit(monkeypatch, shape, kind, dtype):
    """Long prompts are computed some rows and some columns at a time."""
    _, fast, routes_of, hidden = cases(NATIVE_CPU_OPS, shape, kind, dtype)
    x, routes = normal(700, hidden, dtype=dtype), routes_of(700)
    whole = NATIVE_CPU_OPS.experts(x, routes, fast, x, None)
    monkeypatch.setattr(native_experts, "_PIECE_BYTES", 1 << 15)
    assert torch.equal(NATIVE_CPU_OPS.experts(x, routes, fast, x, None), whole)


@pytest.mark.pairs
@pytest.mark.skipif(LIBRARY is None, reason="the native ops are not built here")
@DTYPES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["panels", "halves share a panel", "nothing is packed", "few experts, deep"])
def test_a_row_does_not_depend_on_its_batch(ops, shape, kind, dtype):
    """Whichever rows share its experts, on however many threads, at another stride: bit for bit."""
    if ops is TORCH_CPU_OPS:
        ops = replace(NATIVE_CPU_OPS)  # in the best instruction set
    _, fast, routes_of, hidden = cases(ops, shape, kind, dtype)
    x, routes = (
        normal(1300, hidden, dtype=dtype, seed=9) * torch.logspace(-3, 1, 1300).unsqueeze(1).to(dtype),
        routes_of(1300),
    )

    def computed(rows, num_threads=2):
        native.set_num_threads(num_threads)
        found = ops.experts(x[rows], Routes(routes.experts[rows], routes.shares[rows]), fast, x[rows], None)
        native.set_num_threads(2)
        return found

    whole = computed(slice(0, 1300))
    assert torch.equal(whole, computed(slice(0, 1300), 1)) and torch.equal(whole, computed(slice(0, 1300), 3))
    for rows in (*(slice(i, i + 1) for i in (0, 1, 5, 640, 1299)), slice(3, 5), slice(9, 29), slice(100, 240)):
        assert torch.equal(computed(rows), whole[rows]), rows
    wide = torch.full((1300, hidden + 5), torch.nan, dtype=dtype)
    wide[:, 3 : 3 + hidden] = x
    moved = ops.experts(wide[:, 3 : 3 + hidden], routes, fast, x, None)
    assert torch.equal(moved, whole)
