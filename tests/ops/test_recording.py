"""Recordings of native calls: a replay gives the bits of the calls themselves, and what it would miss is refused."""

import threading
from typing import NamedTuple

import pytest
import torch
from kit.device.workspace_room import room_of

from lullm.arena.host import HostArena
from lullm.arena.workspace import Workspace
from lullm.config.layer.experts import ClampedGate, ExpertsConfig
from lullm.device.cpu import CpuDevice
from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cpu import native, native_attention, native_draw, native_experts, quantized_native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.cpu.recording import Recording
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.draw_table import DrawTable
from lullm.ops.experts.weights import ExpertSlots, ExpertWeights, Matrices
from lullm.ops.quantized.weight import QuantizedLayout
from lullm.units import MIB

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

LIBRARY = load_library()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, VOCAB, BLOCK_SIZE = 64, 4, 2, 16, 160, 4


@pytest.fixture(params=LIBRARY.available_isas)
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


@pytest.fixture
def workspace():
    arena = HostArena("graphs", 2 * MIB)
    yield Workspace(arena)
    arena.close()


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Model:
    """Every op that a step of any model uses, over inputs at addresses that stay."""

    def __init__(self, dtype, num_seqs):
        self.dtype = dtype
        self.weights = {
            name: normal(*shape, dtype=dtype, seed=seed)
            for seed, (name, shape) in enumerate(
                {
                    "embedding": (VOCAB, HIDDEN),
                    "qkv": ((HEADS + 2 * KV_HEADS) * HEAD_SIZE, HIDDEN),
                    "o": (HIDDEN, HEADS * HEAD_SIZE),
                    "gate_up": (128, HIDDEN),
                    "down": (HIDDEN, 64),
                }.items()
            )
        }
        for weight in self.weights.values():
            native.pack_weight_(weight)
        self.norm, self.head_norm = normal(HIDDEN, dtype=dtype), normal(HEAD_SIZE, dtype=dtype)
        self.odd_gate_up = normal(60, HIDDEN, dtype=dtype)  # halves that are not whole panels
        self.layouts = {bits: QuantizedLayout(bits, VOCAB, HIDDEN) for bits in (8, 4)}
        self.quantized = {}
        for bits, layout in self.layouts.items():
            self.quantized[bits] = torch.zeros(layout.shape, dtype=torch.uint8)
            quantized_native.quantize_rows_(self.quantized[bits], layout, 0, normal(VOCAB, HIDDEN, seed=bits))
        self.cos_sin = normal(64, HEAD_SIZE)
        self.caches = [torch.zeros(16, BLOCK_SIZE, KV_HEADS, HEAD_SIZE, dtype=dtype) for _ in "kv"]
        self.token_ids, self.positions, self.slots, self.lens = (
            torch.zeros(num_seqs, dtype=torch.int64) for _ in range(4)
        )
        self.tables = torch.zeros(num_seqs, 8, dtype=torch.int64)
        self.draws = DrawTable(
            torch.full((num_seqs,), 0.7),
            torch.full((num_seqs,), 20, dtype=torch.int32),
            torch.full((num_seqs,), 0.9, dtype=torch.float64),
            torch.full((num_seqs,), -torch.inf),
            torch.zeros(num_seqs, dtype=torch.float64),
        )

    def set_input(self, seed):
        g = torch.Generator().manual_seed(seed)
        n = len(self.token_ids)
        self.token_ids.copy_(torch.randint(VOCAB, (n,), generator=g))
        self.positions.copy_(torch.randint(1, 30, (n,), generator=g))
        self.lens.copy_(self.positions + 1)
        self.tables.copy_(torch.stack([torch.randperm(16, generator=g)[:8] for _ in range(n)]))
        self.draws.keys.copy_(torch.randint(2**62, (n,), generator=g))
        rows = torch.arange(n)
        self.slots.copy_(self.tables[rows, self.positions // BLOCK_SIZE] * BLOCK_SIZE + self.positions % BLOCK_SIZE)
        for number, cache in enumerate(self.caches):
            cache.copy_(normal(*cache.shape, dtype=self.dtype, seed=seed + number))

    def __call__(self):
        w, n = self.weights, len(self.token_ids)
        starts, no_semaphores = torch.from_numpy(STARTS[: n + 1]), self.lens[:0]
        layout = DeviceLayout(starts, self.lens, self.tables, self.slots, no_semaphores, BLOCK_SIZE, 1, 30, window=11)
        attention = native_attention.prepare_attention(layout)
        residual = native.embedding(self.token_ids, w["embedding"])
        native.scale_(residual, 1.5)
        native.rms_norm_(residual[:, 16:48], self.norm[:32], 1e-6)
        native.add_(residual, native.embedding(self.positions, w["embedding"]))
        hidden = native.rms_norm(residual, self.norm, 1e-6)
        qkv = native.linear(hidden, w["qkv"], None).unflatten(-1, (-1, HEAD_SIZE))
        cache = LayerCache(*self.caches)
        q = native_attention.rope_and_cache(
            qkv, HeadNorm(self.head_norm, self.head_norm, 1e-6), self.positions, self.cos_sin, cache, self.slots
        )
        out = native_attention.attention(q, cache, attention, CausalScores(HEAD_SIZE**-0.5)).flatten(1)
        hidden = native.linear(out, w["o"], self.norm)
        hidden, residual = native.add_rms_norm(hidden, residual, self.norm, 1e-6)
        hidden = native.linear(native.gated_linear(hidden, w["gate_up"], None, "silu"), w["down"], None)
        hidden, residual = native.add_rms_norm(hidden, residual, self.norm, 1e-6)
        odd = native.gated_linear(hidden, self.odd_gate_up, None, "silu")
        odd = native.activate(native.layer_norm(odd, self.norm[:30], None, 1e-6), "gelu_tanh")
        eight, four = (
            quantized_native.quantized_linear(hidden, self.quantized[bits], self.layouts[bits], None) for bits in (8, 4)
        )
        rows = quantized_native.quantized_embedding(self.token_ids, self.quantized[8], self.layouts[8], self.dtype)
        logits = native.logits(hidden, w["embedding"])
        native.soft_cap_(logits, 2.0)
        quantized_logits = quantized_native.quantized_logits(hidden, self.quantized[8], self.layouts[8])
        return Outcome(logits, quantized_logits, odd, eight, four, rows, native_draw.draw_tokens(logits, self.draws))


class Outcome(NamedTuple):
    logits: torch.Tensor
    quantized_logits: torch.Tensor
    odd: torch.Tensor
    eight: torch.Tensor
    four: torch.Tensor
    rows: torch.Tensor
    tokens: torch.Tensor


STARTS = torch.arange(64).numpy()


def clones(outcome, caches):
    return [tensor.clone() for tensor in (*outcome, *caches)]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


@DTYPES
@torch.inference_mode()
def test_a_replay_gives_the_bits_of_the_calls(isa, dtype, workspace):
    device = CpuDevice()
    captured = {}
    models = {num_seqs: Model(dtype, num_seqs) for num_seqs in (1, 3, 17)}
    for num_seqs, model in models.items():
        native.set_num_threads(3)
        model.set_input(seed=100)
        expected = clones(model(), model.caches)
        model.set_input(seed=100)
        captured[num_seqs] = device.capture(model, workspace)
        assert captured[num_seqs].refusal is None
        assert_same(clones(captured[num_seqs].output, model.caches), expected)
    for seed in range(3):
        for num_seqs, model in models.items():  # all recordings write over each other's results
            native.set_num_threads(1 + seed)
            model.set_input(seed)
            expected = clones(model(), model.caches)
            model.set_input(seed)
            captured[num_seqs].replay()
            assert_same(clones(captured[num_seqs].output, model.caches), expected)


@torch.inference_mode()
def test_the_workspace_holds_what_is_alive_at_the_peak(workspace):
    capacity = room_of(workspace)
    model = Model(torch.float32, 2)
    model.set_input(0)
    peak = 0
    for size in range(256, capacity, 128):
        arena = HostArena("graphs", 2 * MIB)
        small = Workspace(arena)
        blocker = small.try_empty((room_of(small) - size,), torch.uint8)
        captured = CpuDevice().capture(model, small)
        del blocker
        arena.close()
        if captured.refusal is None:
            peak = size
            break
        assert captured.refusal.endswith("has no room in the workspace")
    results = 4 * 2 * (4 * VOCAB + HIDDEN + 30)  # what is given back in float32
    assert results < peak < 2 * results, "much less than all that was ever written"
    assert CpuDevice().capture(model, workspace).refusal is None
    assert room_of(workspace) == capacity, "recordings keep no range"


@DTYPES
@torch.inference_mode()
def test_the_experts_of_a_replay_follow_its_contents(isa, dtype, workspace):
    config = ExpertsConfig(num_experts=9, num_used=2, intermediate_size=32, layers=(True,))
    gate_up, down = [normal(64, HIDDEN, dtype=dtype, seed=i) for i in range(9)], [
        normal(HIDDEN, 32, dtype=dtype, seed=20 + i) for i in range(9)
    ]  # fmt: skip
    for weight in (*gate_up, *down):
        native.pack_weight_(weight)
    clamp = ClampedGate(alpha=1.5, limit=2.0)
    layers = [
        ExpertWeights(
            Matrices(gate_up, None, [None] * 9), Matrices(down, None, [None] * 9), gate, ExpertSlots.in_order(9)
        )
        for gate in ("silu", clamp)
    ]
    x, products = torch.zeros(5, HIDDEN, dtype=dtype), torch.zeros(5, 9, dtype=dtype)

    def compute():
        routes = native_experts.route(products, None, config)
        return tuple(native_experts.experts(x, routes, weights, x, products[:, :1]) for weights in layers)

    class Results(NamedTuple):
        silu: torch.Tensor
        clamped: torch.Tensor

    captured = CpuDevice().capture(lambda: Results(*compute()), workspace)
    assert captured.refusal is None
    chosen = set()
    for seed in range(4):
        x.copy_(normal(5, HIDDEN, seed=seed + 50))
        products.copy_(normal(5, 9, seed=seed))
        captured.replay()
        assert all(map(torch.equal, captured.output, compute()))
        chosen.add(tuple(native_experts.route(products, None, config).experts.flatten().tolist()))
    assert len(chosen) == 4, "different experts every time"


@torch.inference_mode()
def test_a_token_out_of_range_is_said_by_a_replay_too(workspace):
    model = Model(torch.float32, 2)
    model.set_input(0)
    captured = CpuDevice().capture(model, workspace)
    model.token_ids[1] = VOCAB
    with pytest.raises(IndexError, match=f"vocabulary of {VOCAB}"):
        captured.replay()
    model.set_input(1)
    captured.replay()
    expected = model().logits
    assert torch.equal(captured.output.logits, expected)


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (lambda x: native.rms_norm(x * 2, NORM, 1e-6), "mul"),
        (lambda x: native.rms_norm(x, NORM, 1e-6).mul_(2), "mul_"),
        (lambda x: native.rms_norm(torch.relu(x), NORM, 1e-6), "relu"),
        (lambda x: native.rms_norm(torch.ops.aten.abs(x), NORM, 1e-6), "abs"),
        (lambda x: native.rms_norm(x.t().contiguous(), x[:, 0], 1e-6), "contiguous"),
        (lambda x: native.linear(x.t(), NORM.expand(1, -1), None), "contiguous"),
        (lambda x: native.rms_norm(x.to(torch.bfloat16), NORM, 1e-6), "to"),
        (lambda x: native.rms_norm(x.half(), NORM.half(), 1e-6), "half"),
        (lambda x: native.rms_norm(x[torch.from_numpy(STARTS[:3])], NORM, 1e-6), "__getitem__"),
        (lambda x: native.rms_norm(x, NORM, x.max().item()), "max"),
        (lambda x: native.rms_norm(x, NORM, float(x.shape[0] + len(x.tolist()))), "tolist"),
        (lambda x: x.__setitem__(0, 1.0) or native.rms_norm(x, NORM, 1e-6), "__setitem__"),
        (lambda x: native.rms_norm(torch.zeros_like(x), NORM, 1e-6), "zeros_like"),
        (lambda x: native_attention.copy_blocks([LayerCache(x.unsqueeze(0), x.unsqueeze(0))], [(0, 0)]), "tensor"),
        (lambda x: native.pack_weight_(x), "lullm_pack_weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@torch.inference_mode()
def test_what_a_replay_would_miss_is_refused(workspace, work, name):
    x = normal(64, 64)
    expected = work(x.clone())
    with Recording(workspace) as recording:
        found = work(x)
    assert recording.refusal is not None and name in recording.refusal
    assert expected is None or torch.equal(found, expected), "it is computed all the same"


NORM = normal(64, seed=1)


@torch.inference_mode()
def test_views_are_no_operations(workspace):
    x = normal(6, 64)

    def work():
        y = native.linear(x, WEIGHT, None)
        halves = y.chunk(2, dim=-1)
        rows = halves[0].unflatten(-1, (2, 16))[1:].float().contiguous()
        return (native.rms_norm(rows.reshape(-1, 16), NORM[:16], 1e-6),)

    captured = CpuDevice().capture(lambda: Pair(*work()), workspace)
    assert captured.refusal == "contiguous is torch's", "a slice of columns has to be copied"

    def lean():
        y = native.linear(x, WEIGHT, None).view(6, 4, 16)[1:].flatten(1).float().contiguous()
        return Pair(native.rms_norm(y.squeeze(0), NORM, 1e-6))

    captured = CpuDevice().capture(lean, workspace)
    assert captured.refusal is None
    x.copy_(normal(6, 64, seed=5))
    captured.replay()
    assert torch.equal(captured.output.y, lean().y)


class Pair(NamedTuple):
    y: torch.Tensor


WEIGHT = normal(64, 64, seed=2)


@torch.inference_mode()
def test_an_error_ends_the_recording(workspace):
    x, capacity = normal(2, 64), room_of(workspace)
    with pytest.raises(ZeroDivisionError), Recording(workspace) as recording:
        native.rms_norm(x, NORM, 1e-6)
        _ = 1 / 0
    result = native.rms_norm(x, NORM, 1e-6)
    assert room_of(workspace) == capacity and len(result) == 2, "results have memory of their own again"
    with pytest.raises(AssertionError, match="nothing was recorded"):
        recording.replay()


def test_threads_record_by_themselves(workspace):
    """What another thread does meanwhile is not in a recording, and does not take its memory."""
    stop, errors = threading.Event(), []
    x = normal(4, 64)
    expected = native.rms_norm(x, NORM, 1e-6)

    def compute():
        while not stop.is_set():
            if not torch.equal(native.rms_norm(x.clone(), NORM, 1e-6), expected):
                errors.append("different")

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        with torch.inference_mode():
            for seed in range(20):
                model = Model(torch.float32, 3)
                model.set_input(seed)
                captured = CpuDevice().capture(model, workspace)
                assert captured.refusal is None
                captured.replay()
                assert torch.equal(captured.output.logits, model().logits)
    finally:
        stop.set()
        thread.join()
    assert not errors
