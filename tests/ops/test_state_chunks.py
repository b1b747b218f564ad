"""Chunks of state spaces and of the delta rule: the same bits however a sequence is cut, and the golden sums."""

import functools
from dataclasses import replace

import pytest
import torch
from kit.model.families import CASES
from kit.model.golden import SIZES, random_model

from lullm.config.layer.recurrent import CHUNK_TOKENS, DeltaNetConfig, StateSpaceConfig
from lullm.config.model import ModelConfig
from lullm.ops.cpu.library import absence
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS
from lullm.ops.state import chunks
from lullm.ops.state.layout import LayerState
from lullm.types.layer_kind import RecurrentState

from .test_state import EVERY_KIND, KERNEL, input_of, layout_of, settled, state_of

pytestmark = pytest.mark.skipif(absence() is not None, reason="the native ops are not built here")
HEADS = [(2, 4, 32, 16), (1, 3, 64, 48), (1, 1, 96, 80), (2, 2, 128, 128)]
"""Groups, heads, their key size, their value size."""
NUM_TOKENS = 150
WHOLE = NUM_TOKENS // CHUNK_TOKENS * CHUNK_TOKENS
PIECES = [[1] * 150, [7] * 21 + [3], [64, 64, 22], [31, 1, 33, 85], [100, 50], [WHOLE, 22]]


def shapes_of(kind, heads):
    num_groups, num_heads, key_dim, value_dim = heads
    if kind != "state space":
        by_key = kind == "decays by key"
        return DeltaNetConfig(num_groups, num_heads, key_dim, value_dim, KERNEL, forgets_by_key=by_key).state_shapes
    return StateSpaceConfig(num_heads, value_dim, num_groups, key_dim, KERNEL).state_shapes


def step(version, kind, state, given, lens, contexts):
    """One step of these spans, which have `contexts` tokens with it."""
    layout = layout_of(lens, None, state.layout.block_tables)
    layout.layout.context_lens.copy_(torch.tensor(contexts))
    op = version.state_space if kind == "state space" else version.gated_delta_rule
    return op(*given, LayerState(state.cache, layout, 0, state.shapes))


def run(version, kind, given, heads, pieces):
    """Outputs, and the matrices behind the last full chunk."""
    state, first, parts = state_of([1], shapes_of(kind, heads), []), 0, []
    for size in pieces:
        part = *[x[first : first + size] for x in given[:3]], given[3]
        first += size
        parts.append(step(version, kind, state, part, [size], [first]))
    return torch.cat(parts), LayerState(state.cache, layout_of([1], None, state.layout.block_tables), 0, state.shapes)


def given_of(kind, heads, rate):
    given = input_of(kind, NUM_TOKENS, heads, torch.bfloat16)
    given[3].a_log.add_(rate)
    return given


def first_of(given):
    """The inputs of the whole chunks."""
    return *[x[:WHOLE] for x in given[:3]], given[3]


@functools.cache  # every instruction set has the same
def golden(kind, heads, rate):
    """Outputs, and the matrices behind the last full chunk."""
    given = given_of(kind, heads, rate)
    exact = *[x.float() for x in given[:3]], given[3]
    expected, _ = run(REFERENCE_OPS, kind, exact, heads, [NUM_TOKENS])
    return expected, run(REFERENCE_OPS, kind, first_of(exact), heads, [WHOLE])[1].read(1)


@pytest.mark.pairs
@EVERY_KIND
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rate", [-1.0, 2.0, 6.0])
def test_chunks_equal_the_golden_version_and_have_the_same_bits(isa, kind, heads, rate):
    """From what is kept for long to what is forgotten at once; outputs are rounded to bfloat16."""
    given, (expected, matrices) = given_of(kind, heads, rate), golden(kind, heads, rate)
    whole, state = run(NATIVE_CPU_OPS, kind, given, heads, [NUM_TOKENS])
    torch.testing.assert_close(whole.float(), expected, atol=1e-3, rtol=5e-3)
    behind_chunks = run(NATIVE_CPU_OPS, kind, first_of(given), heads, [WHOLE])[1]
    # Chunks leave no factors beside their matrices.
    found = behind_chunks.read(1)
    if kind != "decays by key":
        found = settled(found, behind_chunks.read(2).nan_to_num(1.0))
    torch.testing.assert_close(found, matrices, atol=5e-5, rtol=1e-4)
    for pieces in PIECES:
        out, behind = run(NATIVE_CPU_OPS, kind, given, heads, pieces)
        assert torch.equal(out, whole) and torch.equal(behind.read(1), state.read(1))


@EVERY_KIND
def test_spans_do_not_meet(kind):
    """A step of a prompt's begin, a chunk's end, a decode: each as alone."""
    heads, before, lens = HEADS[0], [0, 20, 45, 63], [70, 50, 1, 1]
    given = input_of(kind, 200, heads, torch.bfloat16)
    state = state_of([1] * len(lens), shapes_of(kind, heads), [])
    for span, count in enumerate(before):
        if count:
            own = LayerState(
                state.cache, layout_of([1], None, state.layout.block_tables[span : span + 1]), 0, state.shapes
            )
            step(NATIVE_CPU_OPS, kind, own, (*[x[:count] for x in given[:3]], given[3]), [count], [count])
    contexts = [count + own for count, own in zip(before, lens, strict=True)]
    rows = torch.cat([torch.arange(first, end) for first, end in zip(before, contexts, strict=True)])
    found = step(NATIVE_CPU_OPS, kind, state, (*[x[rows] for x in given[:3]], given[3]), lens, contexts)
    alone, _ = run(NATIVE_CPU_OPS, kind, given, heads, [200])
    assert torch.equal(found, alone[rows])


def test_what_a_state_has_room_for():
    config = StateSpaceConfig(num_heads=4, head_dim=16, num_groups=2, state_size=32, kernel_size=4)
    assert config.state_shapes[3:] == ((CHUNK_TOKENS - 1, (4 * 16 + 2 * 32) // 2 + 2 * 4),)
    delta = DeltaNetConfig(num_key_heads=2, num_value_heads=4, key_head_dim=32, value_head_dim=16, kernel_size=4)
    assert delta.state_shapes[3:] == ((CHUNK_TOKENS - 1, 4 * 16 + 4 + 2 * 32 // 2),)
    by_key = replace(delta, forgets_by_key=True)
    assert by_key.state_shapes[2:] == ((CHUNK_TOKENS - 1, 4 * (16 + 32 // 2 + 32 // 2)),), "no factors"
    assert replace(by_key, keeps_chunks=False).state_shapes == by_key.state_shapes[:2]
    assert StateSpaceConfig(4, 16, 2, 24, 4).state_shapes[3:] == (), "no tiles"


TILED = {
    "Qwen3_5": {"linear_key_head_dim": 32, "linear_value_head_dim": 16},
    "Mamba2": {"head_dim": 16, "num_heads": 6, "state_size": 32},
    "KimiLinear": {"linear_head_dim": 32},
}


@pytest.mark.parametrize("name", TILED)
def test_room_for_chunks_is_where_tiles_are(name, monkeypatch, tmp_path):
    random_model(name, SIZES | CASES[name].engine | TILED[name]).save_pretrained(tmp_path)
    model = ModelConfig.from_folder(tmp_path)
    ways = [("cpu", "bfloat16", 1), ("cpu", "bfloat16", 2), ("cpu", "float32", 1), ("cuda", "bfloat16", 1)]
    for has_tiles, kept in ((True, ways[:2]), (False, ways[1:2])):
        monkeypatch.setattr(chunks, "_has_tiles", lambda has_tiles=has_tiles: has_tiles)
        for way in ways:
            own = chunks.with_chunks_of_use(model, *way)
            shapes = own.family.recurrent.state_shapes
            assert len(shapes) == (2 if name == "KimiLinear" else 3) + (way in kept)
            assert {kind.shapes for kind in own.layer_kinds if isinstance(kind, RecurrentState)} == {shapes}
