"""Recurrent ops: chunks against single tokens and against the golden version, and states in blocks of any cache."""

import pytest
import torch

from lullm.kv.cache_group import num_state_blocks
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS
from lullm.ops.state.layout import StateLayout, read_states, write_states
from lullm.types.layer_kind import RecurrentState

HEADS = [(2, 4, 8, 12), (1, 1, 16, 16), (4, 4, 32, 24)]
LENS = [[1], [200], [64, 1, 65, 1, 3], [1, 1, 1, 1], [2, 128, 63]]


def layout_of(query_lens, is_first=None):
    num_spans = len(query_lens)
    is_first = torch.tensor(is_first or [False] * num_spans)
    return StateLayout(query_lens, is_first, torch.zeros(num_spans, 1).long(), torch.full((sum(query_lens),), -1))


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def delta_input(num_tokens, heads):
    num_keys, num_values, key_dim, value_dim = heads
    return (
        draw(num_tokens, 2 * num_keys, key_dim),
        draw(num_tokens, num_values, value_dim),
        -0.3 * draw(num_tokens, num_values).exp(),
        draw(num_tokens, num_values).sigmoid(),
    )


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("query_lens", LENS, ids=str)
def test_the_delta_rule_equals_the_golden_version(query_lens, heads):
    given = delta_input(sum(query_lens), heads)
    before = draw(len(query_lens), heads[1], heads[2], heads[3])
    found, expected = before.clone(), before.clone()
    outs = [
        ops.gated_delta_rule(*given, state, layout_of(query_lens))
        for ops, state in ((TORCH_CPU_OPS, found), (REFERENCE_OPS, expected))
    ]
    assert outs[1].abs().mean() > 0.01
    torch.testing.assert_close(outs[0], outs[1], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_steps_of_any_size_give_the_same():
    """However a sequence is cut: in one piece, token by token, and in pieces between."""
    heads, num_tokens = HEADS[0], 150
    given = delta_input(num_tokens, heads)
    results = []
    for size in (150, 1, 7, 64, 100):
        state, parts = torch.zeros(1, heads[1], heads[2], heads[3]), []
        for first in range(0, num_tokens, size):
            part = [x[first : first + size] for x in given]
            parts.append(TORCH_CPU_OPS.gated_delta_rule(*part, state, layout_of([len(part[0])])))
        results.append((torch.cat(parts), state))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("query_lens", LENS, ids=str)
def test_the_convolution_equals_the_golden_version(query_lens, dtype, has_bias):
    num_channels, kernel_size = 10, 4
    x, weight = draw(sum(query_lens), num_channels).to(dtype), draw(num_channels, kernel_size).to(dtype)
    bias = draw(num_channels).to(dtype) if has_bias else None
    before = draw(len(query_lens), kernel_size - 1, num_channels)
    found, expected = before.clone(), before.clone()
    outs = [
        ops.causal_convolution(x, weight, bias, tails, layout_of(query_lens))
        for ops, tails in ((TORCH_CPU_OPS, found), (REFERENCE_OPS, expected))
    ]
    assert outs[0].dtype == dtype
    torch.testing.assert_close(outs[0], outs[1], atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=1e-4)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("num_elements", [1, 100, 1000])
def test_states_keep_their_bits_in_the_blocks_of_any_cache(dtype, num_elements):
    shapes = ((3, num_elements), (2, 4, 5))
    tensor = torch.zeros(200, 8, 2, 18, dtype=dtype)
    cache = LayerCache(tensor, tensor.clone())
    num_blocks = num_state_blocks(RecurrentState(shapes), 2 * cache.key[0].nbytes)
    assert num_elements < 1000 or num_blocks > 2
    ids = torch.randperm(200, generator=torch.Generator().manual_seed(0))[: 6 * num_blocks].view(3, 2 * num_blocks)
    layout = StateLayout([1, 1, 1], torch.tensor([False, True, False]), ids, torch.tensor([-1] * 3))
    kept = []
    for part in (0, 1):
        states = [draw(3, *shape) + part for shape in shapes]
        write_states(cache, layout, part, states)
        kept.append(states)
    for part, states in enumerate(kept):
        for found, state in zip(read_states(cache, layout, part, shapes), states, strict=True):
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
    found = StateLayout.of(layout)
    assert found.query_lens == [1, 1] and found.is_first.tolist() == [False, True]
    assert found.block_tables.tolist() == [[0, 1], [2, 3]]
    x, weight, tails = draw(3, 6), draw(6, 4), draw(2, 3, 6)
    before = tails.clone()
    out = TORCH_CPU_OPS.causal_convolution(x, weight, None, tails, found)
    assert out.shape == (3, 6) and torch.equal(tails[:, -1], x[:2]) and torch.equal(tails[:, :-1], before[:, 1:])
