"""Recurrent ops: chunks against single tokens and against the golden version, and states in blocks of any cache."""

import math
from dataclasses import replace

import pytest
import torch

from lullm.config.layer.recurrent import FACTOR_COLUMNS, head_states
from lullm.kv.cache_group import num_state_blocks
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cpu import native
from lullm.ops.cpu.library import load_library
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS
from lullm.ops.state.layout import LayerState, StateLayout
from lullm.ops.state.weights import DecayWeights, UnitWeights
from lullm.types.layer_kind import RecurrentState

LIBRARY = load_library()
HEADS = [(2, 4, 8, 12), (1, 1, 16, 16), (4, 4, 32, 24), (1, 3, 40, 72)]
"""Key heads (groups), heads, their key size, their value size."""
LENS = [[1], [200], [64, 1, 65, 1, 3], [1, 1, 1, 1], [2, 128, 63]]
KERNEL = 4
PAGE = (8, 1, 18)
"""Tokens, heads and their size of a block: no row of a state fits into a page evenly."""


def layout_of(query_lens, is_first=None, tables=None):
    """A step of spans that go on, or begin."""
    is_first = is_first or [False] * len(query_lens)
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    contexts = [count if first else count + 5 for count, first in zip(query_lens, is_first, strict=True)]
    return StateLayout(
        DeviceLayout(
            query_starts=starts,
            context_lens=torch.tensor(contexts),
            block_tables=torch.zeros(len(query_lens), 1, dtype=torch.int64) if tables is None else tables,
            slot_mapping=torch.full((sum(query_lens),), -1),
            semaphores=torch.zeros(0),
            block_size=PAGE[0],
            max_query_len=max(query_lens),
            max_context_len=max(contexts),
        )
    )


def state_of(query_lens, shapes, before, is_first=None, dtype=torch.float32):
    """A state in scattered blocks of a cache of NaN, with these tensors in it."""
    tensor = torch.zeros(900, *PAGE, dtype=dtype)
    cache = LayerCache(tensor, tensor.clone())
    for side in cache.tensors:
        side.view(torch.uint8).fill_(255)
    num_blocks = num_state_blocks(RecurrentState(shapes), 2 * cache.key[0].nbytes)
    ids = torch.randperm(900, generator=torch.Generator().manual_seed(1))[: len(query_lens) * num_blocks]
    state = LayerState(cache, layout_of(query_lens, is_first, ids.view(len(query_lens), -1)), 0, shapes)
    for index, values in enumerate(before):
        state.write(index, values)
    return state


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def shapes_of(heads, num_channels=10):
    return (KERNEL - 1, num_channels), *head_states(*heads[1:])


def run_rule(ops, kind, given, query_lens, heads, before, is_first=None):
    """(what the op gives, the states behind it: matrices, and what they are still to be multiplied by)."""
    state = state_of(query_lens, shapes_of(heads), [torch.zeros(len(query_lens), KERNEL - 1, 10), *before], is_first)
    op = ops.state_space if kind == "state space" else ops.gated_delta_rule
    out = op(*given, state)
    next_step = LayerState(state.cache, layout_of(query_lens, None, state.layout.block_tables), 0, state.shapes)
    return out, next_step.read(1), next_step.read(2)


def settled(matrices, factors):
    """The matrices with their factors. Torch's versions leave these as they are."""
    return matrices * factors.repeat_interleave(FACTOR_COLUMNS, dim=2)[:, :, None, : matrices.shape[3]]


def states_before(num_seqs, heads):
    """Matrices, and factors of 1."""
    _, matrices, factors = shapes_of(heads)
    return draw(num_seqs, *matrices), torch.ones(num_seqs, *factors)


def input_of(kind, num_tokens, heads, dtype=torch.float32):
    num_keys, num_values, key_dim, value_dim = heads
    weights = DecayWeights(draw(num_values), draw(num_values) - 1, draw(num_values), 0.05, 1.5, most_beta=1.7)
    keys = draw(num_tokens, 2 * num_keys, key_dim)
    values = draw(num_tokens, num_values, value_dim)
    if kind == "delta rule":
        given = keys, values, draw(num_tokens, 2 * num_values)
    elif kind == "decays by key":
        weights = replace(weights, dt_bias=draw(num_values * key_dim) - 1)
        given = keys, values, draw(num_tokens, num_values * (1 + key_dim))
    else:
        given = values, keys * 0.3, draw(num_tokens, num_values)
    return *[x.to(dtype) for x in given], weights


KINDS = pytest.mark.parametrize("kind", ["delta rule", "state space"])
EVERY_KIND = pytest.mark.parametrize("kind", ["delta rule", "state space", "decays by key"])
"""The last one is Kimi Delta Attention."""


@pytest.mark.pairs
@EVERY_KIND
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("query_lens", LENS, ids=str)
def test_the_recurrence_equals_the_golden_version(ops, query_lens, heads, kind):
    given = input_of(kind, sum(query_lens), heads)
    check_recurrence(ops, kind, given, query_lens, heads)


def check_recurrence(ops, kind, given, query_lens, heads):
    matrices, factors = states_before(len(query_lens), heads)
    is_first = [span == 1 for span in range(len(query_lens))]
    expected = run_rule(REFERENCE_OPS, kind, given, query_lens, heads, (matrices, factors), is_first)
    if ops is NATIVE_CPU_OPS and kind != "decays by key":
        factors = factors * 0.25
        matrices = matrices * 4
    found = run_rule(ops, kind, given, query_lens, heads, (matrices, factors), is_first)
    assert expected[0].abs().mean() > 0.01
    torch.testing.assert_close(found[0], expected[0], atol=5e-5, rtol=1e-4)
    torch.testing.assert_close(settled(*found[1:]), expected[1], atol=5e-5, rtol=1e-4)


@pytest.mark.pairs
@EVERY_KIND
@pytest.mark.parametrize("rate", [1.5, 4.0, 8.0])
def test_what_is_forgotten_soon_or_at_once(ops, kind, rate):
    """The decay of some tokens is below every factor that is kept, down to 0."""
    heads, query_lens = (2, 4, 8, 72), [90, 1, 7]
    *given, weights = input_of(kind, sum(query_lens), heads)
    check_recurrence(ops, kind, (*given, replace(weights, a_log=weights.a_log + rate)), query_lens, heads)


@EVERY_KIND
def test_steps_of_any_size_give_the_same(ops, kind):
    """However a sequence is cut: in one piece, token by token, and in pieces between. Native: the same bits."""
    heads, num_tokens = HEADS[0], 150
    given = input_of(kind, num_tokens, heads)
    results = []
    for size in (150, 1, 7, 64, 100):
        kept, parts = states_before(1, heads), []
        for first in range(0, num_tokens, size):
            part = [x[first : first + size] for x in given[:3]]
            out, *kept = run_rule(ops, kind, (*part, given[3]), [len(part[0])], heads, kept)
            parts.append(out)
        results.append((torch.cat(parts), *kept))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=5e-5, rtol=1e-4)
        if ops is NATIVE_CPU_OPS:
            assert all(torch.equal(found, first) for found, first in zip(result, results[0], strict=True))


def run_scan(ops, given, query_lens, before, is_first=None):
    """Of a selective scan, (what the op gives, the states behind it)."""
    shapes = (KERNEL - 1, before.shape[2]), tuple(before.shape[1:])
    state = state_of(query_lens, shapes, [torch.zeros(len(query_lens), *shapes[0]), before], is_first)
    out = ops.selective_scan(*given, state)
    return out, LayerState(state.cache, layout_of(query_lens, None, state.layout.block_tables), 0, shapes).read(1)


def input_of_scan(num_tokens, num_channels, state_size, dtype=torch.float32):
    """Parts of longer rows, as projections give them; and weights."""
    rows = draw(num_tokens, 2 * num_channels + 2 * state_size + 3).to(dtype)
    x, dt, bc, _ = rows.split((num_channels, num_channels, 2 * state_size, 3), dim=1)
    return x, bc, dt * 3, DecayWeights(draw(num_channels, state_size), draw(num_channels) - 1, draw(num_channels))


@pytest.mark.pairs
@pytest.mark.parametrize("sizes", [(10, 3), (150, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("query_lens", LENS, ids=str)
def test_the_selective_scan_equals_the_golden_version(ops, query_lens, dtype, sizes):
    given = input_of_scan(sum(query_lens), *sizes, dtype)
    before, is_first = draw(len(query_lens), *reversed(sizes)), [span == 1 for span in range(len(query_lens))]
    found, expected = (run_scan(version, given, query_lens, before, is_first) for version in (ops, REFERENCE_OPS))
    assert found[0].dtype == dtype and expected[0].float().abs().mean() > 0.01
    tolerance = 5e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found[0], expected[0], atol=tolerance, rtol=max(tolerance, 1e-4))
    torch.testing.assert_close(found[1], expected[1], atol=5e-5, rtol=1e-4)


def test_a_selective_scan_in_steps_of_any_size_gives_the_same(ops):
    """Native: the same bits, whatever stands beside it."""
    num_tokens, results = 70, []
    given = input_of_scan(num_tokens, 150, 16)
    for size in (70, 1, 13):
        kept, parts = torch.zeros(1, 16, 150), []
        for first in range(0, num_tokens, size):
            part = [torch.cat([x[:2], x[first : first + size]]) for x in given[:3]]
            out, states = run_scan(ops, (*part, given[3]), [2, len(part[0]) - 2], torch.cat([kept * 0 + 1, kept]))
            parts.append(out[2:])
            kept = states[1:]
        results.append((torch.cat(parts), kept))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=5e-5, rtol=1e-4)
        if ops is NATIVE_CPU_OPS:
            assert all(torch.equal(found, first) for found, first in zip(result, results[0], strict=True))


def run_units(ops, given, query_lens, before, is_first=None):
    """Of gated linear units, (what the op gives, the states behind it)."""
    shapes = (KERNEL - 1, before.shape[1]), (before.shape[1],)
    state = state_of(query_lens, shapes, [torch.zeros(len(query_lens), *shapes[0]), before], is_first)
    out = ops.rg_lru(*given, state)
    return out, LayerState(state.cache, layout_of(query_lens, None, state.layout.block_tables), 0, shapes).read(1)


def input_of_units(num_tokens, num_channels, dtype=torch.float32):
    """Parts of longer rows; and weights."""
    x, inputs, decays, _ = draw(num_tokens, 3 * num_channels + 3).to(dtype).split((*[num_channels] * 3, 3), dim=1)
    return x, inputs, decays * 3, UnitWeights(draw(num_channels) - 2, draw(num_channels) - 1, draw(num_channels) + 1)


@pytest.mark.parametrize("num_channels", [10, 150])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("query_lens", LENS, ids=str)
def test_gated_units_equal_the_golden_version(ops, query_lens, dtype, num_channels):
    given = input_of_units(sum(query_lens), num_channels, dtype)
    before, is_first = draw(len(query_lens), num_channels), [span == 1 for span in range(len(query_lens))]
    found, expected = (run_units(version, given, query_lens, before, is_first) for version in (ops, REFERENCE_OPS))
    assert found[0].dtype == dtype and expected[0].float().abs().mean() > 0.1
    tolerance = 5e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found[0], expected[0], atol=tolerance, rtol=max(tolerance, 1e-4))
    torch.testing.assert_close(found[1], expected[1], atol=5e-5, rtol=1e-4)


def test_gated_units_in_steps_of_any_size_give_the_same(ops):
    """Native: the same bits, whatever stands beside it."""
    num_tokens, results = 70, []
    given = input_of_units(num_tokens, 150)
    for size in (70, 1, 13):
        kept, parts = draw(1, 150), []
        for first in range(0, num_tokens, size):
            part = [torch.cat([x[:2], x[first : first + size]]) for x in given[:3]]
            out, states = run_units(ops, (*part, given[3]), [2, len(part[0]) - 2], torch.cat([kept * 0 + 1, kept]))
            parts.append(out[2:])
            kept = states[1:]
        results.append((torch.cat(parts), kept))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=5e-5, rtol=1e-4)
        if ops is NATIVE_CPU_OPS:
            assert all(torch.equal(found, first) for found, first in zip(result, results[0], strict=True))


@pytest.mark.pairs
@pytest.mark.parametrize("activates", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("query_lens", LENS, ids=str)
@pytest.mark.parametrize("kernel", [2, 3, KERNEL])
def test_the_convolution_equals_the_golden_version(ops, query_lens, dtype, has_bias, activates, kernel):
    num_channels = 150
    x, weight = (
        draw(sum(query_lens), 2 * num_channels).to(dtype)[:, num_channels:],
        draw(num_channels, kernel).to(dtype),
    )
    bias = draw(num_channels).to(dtype) if has_bias else None
    before = draw(len(query_lens), kernel - 1, num_channels)
    found = []
    is_first = [span == 1 for span in range(len(query_lens))]
    for version in (ops, REFERENCE_OPS):
        state = state_of(query_lens, ((kernel - 1, num_channels),), [before], is_first)
        after = LayerState(state.cache, layout_of(query_lens, None, state.layout.block_tables), 0, state.shapes)
        found.append((version.causal_convolution(x, weight, bias, activates, state), after.read(0)))
    assert found[0][0].dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found[0][0], found[1][0], atol=tolerance, rtol=1e-4)
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_in_pieces_keeps_its_bits(ops, dtype):
    """Of more rows and channels than an item has, beside another span: its state is read before it is written."""
    num_channels, num_tokens = 1100, 400
    x, weight = draw(num_tokens, num_channels).to(dtype), draw(num_channels, KERNEL).to(dtype)
    shapes, results = ((KERNEL - 1, num_channels),), []
    for size in (num_tokens, 129, 128, 2):
        kept, parts = draw(1, KERNEL - 1, num_channels), []
        for first in range(0, num_tokens, size):
            part = x[first : first + size]
            lens = [1, len(part)]
            state = state_of(lens, shapes, [torch.cat([torch.zeros_like(kept), kept])])
            parts.append(ops.causal_convolution(torch.cat([x[:1], part]), weight, None, True, state)[1:])
            kept = LayerState(state.cache, layout_of(lens, None, state.layout.block_tables), 0, shapes).read(0)[1:]
        results.append((torch.cat(parts), kept))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=1e-5, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4)
        assert torch.equal(result[1], results[0][1])
        assert ops is not NATIVE_CPU_OPS or torch.equal(result[0], results[0][0])


@pytest.mark.parametrize("gates_first", [False, True])
@pytest.mark.parametrize("shares_weight", [False, True])
@pytest.mark.parametrize("size", [6, 40])
def test_the_gated_norm(ops, size, gates_first, shares_weight):
    """By hand: RMSNorm of a group, and silu of the gates before it or behind it."""
    x, gate, weight = draw(3, 2, size), draw(3, 2 * size + 5)[:, 5:], draw(size if shares_weight else 2 * size)
    out = ops.gated_rms_norm(x, gate, weight, 1e-3, gates_first)
    factor = (gate / (1 + (-gate).exp())).unflatten(1, (2, size))
    values = x * factor if gates_first else x
    expected = values / (values.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight.view(-1, size)
    expected = expected if gates_first else expected * factor
    torch.testing.assert_close(out, expected.flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gating", [None, "silu", "sigmoid", "softplus"])
@pytest.mark.parametrize("stretch", [1, 2, 20])
def test_a_gate_multiplies_a_part_of_longer_rows(ops, gating, dtype, stretch):
    whole, x = draw(5, 60).to(dtype), draw(5, 90).to(dtype)[:, 40 : 40 + 40 // stretch]
    given = 3 * x.float().repeat_interleave(stretch, dim=1)
    x *= 3
    factors = {"silu": torch.nn.functional.silu, "sigmoid": torch.sigmoid, "softplus": torch.nn.functional.softplus}
    factor = (given if gating is None else factors[gating](x.float().repeat_interleave(stretch, dim=1))).to(dtype)
    expected = (whole[:, 7:47].float() * factor.float()).to(dtype)
    before = whole.clone()
    ops.multiply_(whole[:, 7:47], x, gating)
    torch.testing.assert_close(whole[:, 7:47], expected, atol=0, rtol=1e-6 if dtype == torch.float32 else 1e-2)
    assert torch.equal(whole[:, :7], before[:, :7]) and torch.equal(whole[:, 47:], before[:, 47:])


@KINDS
@pytest.mark.skipif(LIBRARY is None, reason="the native ops are not built here")
def test_native_bits_follow_neither_batch_nor_threads(kind):
    heads, query_lens = (2, 4, 24, 80), [1, 17, 1, 3]
    given = input_of(kind, sum(query_lens), heads, torch.bfloat16)
    before = states_before(len(query_lens), heads)
    found = []
    for num_threads in (1, 2):
        native.set_num_threads(num_threads)
        found.append(run_rule(NATIVE_CPU_OPS, kind, given, query_lens, heads, before))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    rows = layout_of(query_lens).rows
    for span, own in enumerate(rows):
        part = [x[own] for x in given[:3]]
        of_span = [tensor[span, None] for tensor in before]
        out, *states = run_rule(NATIVE_CPU_OPS, kind, (*part, given[3]), query_lens[span : span + 1], heads, of_span)
        assert torch.equal(out, found[0][0][own])
        assert all(torch.equal(state[0], kept[span]) for state, kept in zip(states, found[0][1:], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("num_elements", [1, 100, 1000])
def test_states_keep_their_bits_in_the_blocks_of_any_cache(dtype, num_elements):
    shapes = ((3, num_elements), (2, 4, 5))
    tensor = torch.zeros(200, 8, 2, 18, dtype=dtype)
    cache = LayerCache(tensor, tensor.clone())
    num_blocks = num_state_blocks(RecurrentState(shapes), 2 * cache.key[0].nbytes)
    assert num_elements < 1000 or num_blocks > 2
    ids = torch.randperm(200, generator=torch.Generator().manual_seed(0))[: 6 * num_blocks].view(3, 2 * num_blocks)
    layout = layout_of([1, 1, 1], [False, True, False], ids)
    kept = []
    for part in (0, 1):
        states = [draw(3, *shape) + part for shape in shapes]
        for index, values in enumerate(states):
            LayerState(cache, layout, part, shapes).write(index, values)
        kept.append(states)
    for part, states in enumerate(kept):
        for index, state in enumerate(states):
            found = LayerState(cache, layout, part, shapes).read(index)
            assert torch.equal(found[[0, 2]], state[[0, 2]])
            assert not found[1].any(), "a sequence begins with zeros"


def test_rows_that_fill_up_a_batch_are_no_spans():
    layout = DeviceLayout(
        query_starts=torch.tensor([0, 1, 2, 3]),
        context_lens=torch.tensor([5, 1, 0]),
        block_tables=torch.arange(6).view(3, 2),
        slot_mapping=torch.tensor([-1] * 3),
        semaphores=torch.zeros(0),
        block_size=8,
        max_query_len=1,
        max_context_len=5,
    )
    found = StateLayout(layout)
    assert found.query_lens == [1, 1] and found.is_first.tolist() == [False, True]
    assert found.block_tables.tolist() == [[0, 1], [2, 3]]
    tensor = torch.zeros(6, 8, 1, 18)
    state = LayerState(LayerCache(tensor, tensor.clone()), found, 0, ((3, 6),))
    x, weight, before = draw(3, 6), draw(6, 4), draw(2, 3, 6)
    state.write(0, before)
    out = TORCH_CPU_OPS.causal_convolution(x, weight, None, True, state)
    after = LayerState(state.cache, layout_of([1, 1], None, found.block_tables), 0, ((3, 6),)).read(0)
    assert out.shape == (3, 6) and torch.equal(after[:, -1], x[:2])
    assert torch.equal(after[0, :-1], before[0, 1:]) and not after[1, :-1].any()


def test_a_page_may_end_within_any_row():
    shapes = ((3, 11), (2, 5, 13))
    before = [draw(2, *shape) for shape in shapes]
    state = state_of([1, 1], shapes, before)
    assert math.prod(PAGE) % 11 and math.prod(PAGE) % 13
    assert all(torch.equal(state.read(index), values) for index, values in enumerate(before))
