"""Recurrent layers in a batch of decodes that is filled up: torch's results, no word to the host, no other block."""

import dataclasses

import pytest
import torch

from lullm.kv.cache_group import num_state_blocks
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.ops.state.layout import LayerState, StateLayout
from lullm.ops.state.weights import DecayWeights, UnitWeights
from lullm.ops.table import Ops
from lullm.ops.triton.table import TRITON_OPS
from lullm.types.layer_kind import RecurrentState

SHAPES = (3, 10), (4, 8, 12)
SELECTED = (3, 10), (8, 12)
"""Of Mamba 1, which has no heads."""
UNITS = (3, 10), (12,)
"""Of gated linear units."""
NUM_ROWS = 5
OPS = ["causal_convolution", "gated_delta_rule", "state_space", "selective_scan", "rg_lru"]


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def new_state(context_lens, shapes=SHAPES):
    """In scattered blocks of random numbers; rows of context 0 have the blocks of nobody in their tables."""
    cache = LayerCache(*draw(2, 200, 8, 1, 18))
    num_blocks = num_state_blocks(RecurrentState(shapes), 2 * cache.key[0].nbytes)
    ids = torch.randperm(200, generator=torch.Generator().manual_seed(1))[: NUM_ROWS * num_blocks]
    layout = DeviceLayout(
        query_starts=torch.arange(NUM_ROWS + 1, dtype=torch.int32),
        context_lens=torch.tensor(context_lens, dtype=torch.int32),
        block_tables=ids.view(NUM_ROWS, -1).int(),
        slot_mapping=torch.full((NUM_ROWS,), -1),
        semaphores=torch.zeros(0),
        block_size=8,
        max_query_len=1,
        max_context_len=100,
    )
    return LayerState(cache, StateLayout(layout), 0, shapes)


def run(ops, name, state):
    weights = DecayWeights(draw(4), draw(4) - 1, draw(4), 0.05, 1.5)
    keys, values = draw(NUM_ROWS, 4, 8), draw(NUM_ROWS, 4, 12)
    if name == "causal_convolution":
        return ops.causal_convolution(draw(NUM_ROWS, 10), draw(10, 4), draw(10), True, state)
    if name == "gated_delta_rule":
        return ops.gated_delta_rule(keys, values, draw(NUM_ROWS, 8), weights, state)
    if name == "selective_scan":
        weights = DecayWeights(draw(12, 8), draw(12) - 1, draw(12))
        return ops.selective_scan(draw(NUM_ROWS, 12), draw(NUM_ROWS, 16), draw(NUM_ROWS, 12), weights, state)
    if name == "rg_lru":
        rows = [draw(NUM_ROWS, 12 + i)[:, :12] for i in range(3)]
        return ops.rg_lru(*rows, UnitWeights(draw(12), draw(12) - 1, draw(12) + 1), state)
    return ops.state_space(values, keys * 0.3, draw(NUM_ROWS, 4), weights, state)


@pytest.mark.parametrize("context_lens", [[7, 1, 30, 0, 0], [1, 9, 0, 0, 0], [2, 1, 5, 9, 1]], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_a_batch_of_decodes_without_a_word_to_the_host(name, context_lens, monkeypatch):
    num_real = sum(context > 0 for context in context_lens)
    shapes = {"selective_scan": SELECTED, "rg_lru": UNITS}.get(name, SHAPES)
    expected_state, state = new_state(context_lens, shapes), new_state(context_lens, shapes)
    expected = run(TORCH_CPU_OPS, name, expected_state)
    monkeypatch.setattr(StateLayout, "query_lens", property(lambda _: pytest.fail("the host waits")))
    torch.testing.assert_close(run(TRITON_OPS, name, state)[:num_real], expected[:num_real])
    for side, expected_side in zip(state.cache.tensors, expected_state.cache.tensors, strict=True):
        torch.testing.assert_close(side, expected_side)


def test_every_op_of_a_state_has_a_version_that_does_not_wait():
    """A new one would be torch's, and the graphs of a model with it could not be recorded."""
    with_state = [field for field in dataclasses.fields(Ops) if "LayerState" in str(field.type)]
    assert [field.name for field in with_state] == OPS
    assert not any(getattr(TRITON_OPS, field.name) is field.default for field in with_state)


def test_other_steps_are_torchs():
    state = new_state([7, 1, 30, 2, 5])
    layout = state.layout.layout
    layout = DeviceLayout(
        torch.tensor([0, 3, 5]), torch.tensor([7, 2]), layout.block_tables[:2], layout.slot_mapping,
        layout.semaphores, 8, max_query_len=3, max_context_len=100,
    )  # fmt: skip
    for ops in (TORCH_CPU_OPS, TRITON_OPS):
        given = LayerState(LayerCache(*(side.clone() for side in state.cache.tensors)), StateLayout(layout), 0, SHAPES)
        results = run(ops, "gated_delta_rule", given), given.cache.key
        if ops is TORCH_CPU_OPS:
            expected = results
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
