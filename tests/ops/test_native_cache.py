"""Native attention over a cache of 8 bits, with soft cap and sinks, against the golden one; and what is written there.

In every instruction set of this machine. Bounds as in `test_native`: the products are exact in both, since bfloat16 and
float32 hold every number of such a cache; a value's scale is part of its weight, which bfloat16 rounds once, to 2**-9.
"""

import dataclasses

import pytest
import torch

from lullm.arena.host import HostArena
from lullm.arena.workspace import Workspace
from lullm.ops import reference
from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache import float8_cache, int8_cache
from lullm.ops.cache.float8_cache import as_bytes
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cpu import native, native_attention
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.cpu.recording import Recording
from lullm.units import MIB

from .test_attention import STEPS, make_step, prepare

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

LIBRARY = load_library()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SCALES = torch.tensor([0.02, 0.05]), torch.tensor([0.5, 0.01])
KINDS = ["plain", "int8", "fp8", "fp8 with scales"]
QUANTIZED = pytest.mark.parametrize("kind", KINDS[1:])
SINKS = torch.tensor([0.3, -2.0, 1.5, 4.0])


@pytest.fixture
def workspace():
    arena = HostArena("graphs", 2 * MIB)
    yield Workspace(arena)
    arena.close()


@pytest.fixture(autouse=True, params=LIBRARY.available_isas)
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    native.set_num_threads(2)
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


def cache_of(kind, key, value):
    """The same content; NaN becomes bytes whose numbers are NaN."""
    if kind == "plain":
        return LayerCache(key, value)
    if kind == "int8":
        return LayerCache(int8_cache.quantize(key), int8_cache.quantize(value))
    scales = [own[: key.shape[2]] if kind == "fp8 with scales" else None for own in SCALES]
    sides = (float8_cache.quantize(side, own) for side, own in zip((key, value), scales, strict=True))
    return LayerCache(*sides, *scales)


def empty_cache(kind, *shape, dtype=torch.float32):
    """Zeros as `cache_of` would hold them, with another byte wherever nothing will be written."""
    cache = cache_of(kind, *torch.zeros(2, *shape, dtype=dtype))
    for side in cache.tensors:
        as_bytes(side).fill_(7)
    return cache


def assert_native(layout, q, cache, scale, *extras, float32=4e-6, bfloat16=2**-6):
    expected = reference.attention(q, cache, layout, CausalScores(scale, *extras))
    prepared = prepare(native_attention, layout)
    found = native_attention.attention(q, cache, prepared, CausalScores(scale, *extras))
    assert "grouped" not in vars(prepared), "torch's attention has served"
    bound = {torch.float32: float32, torch.bfloat16: bfloat16}[q.dtype]
    torch.testing.assert_close(found, expected, atol=bound, rtol=bound)
    return expected


@pytest.mark.pairs
@DTYPES
@QUANTIZED
@pytest.mark.parametrize("shape", STEPS.values(), ids=STEPS.keys())
def test_steps(dtype, kind, shape):
    layout, q, caches = make_step(shape, 6, 2, head_size=32, block_size=16, dtype=dtype)
    for span, context_len in enumerate(layout.context_lens):
        layout.block_tables[span, -(-context_len // 16) :] = 10**9  # garbage past the context
    assert_native(layout, q, cache_of(kind, *caches), 32**-0.5)


@pytest.mark.pairs
@DTYPES
@QUANTIZED
@pytest.mark.parametrize("head_size", [16, 48, 64, 80, 128, 256])
@pytest.mark.parametrize("block_size", [1, 8, 32])
def test_head_and_block_sizes(dtype, kind, head_size, block_size):
    shape = [(1, 5), (20, 20), (1, 40), (33, 33), (2, 43), (1, 300), (70, 200)]
    layout, q, caches = make_step(shape, 4, 2, head_size, block_size, dtype)
    assert_native(layout, q, cache_of(kind, *caches), head_size**-0.5)


@DTYPES
@pytest.mark.parametrize("head_size", [80, 128])
@pytest.mark.parametrize("num_rows", [1, 40])
def test_each_integer_is_exact(dtype, head_size, num_rows):
    """Where all keys and all values are equal, a result is the value. Integers of 7 bits survive its rounding."""
    layout, q, _ = make_step([(num_rows, 70)], 2, 1, head_size, 16, dtype)
    side = torch.zeros(len(layout.block_tables[0]) + 2, 16, 1, head_size + 2, dtype=torch.int8)
    side[..., head_size:] = torch.tensor([1.0], dtype=torch.float16).view(torch.int8)
    for first in range(-127, 128, head_size):
        value = torch.arange(first, first + head_size).clamp(max=127)
        own = side.clone()
        own[..., :head_size] = value
        for key in (side, own):
            found = native_attention.attention(
                q, LayerCache(key, own), prepare(native_attention, layout), CausalScores(1.0)
            )
            assert torch.equal(found.bfloat16(), value.bfloat16().expand_as(found))


@DTYPES
@pytest.mark.parametrize("head_size", [48, 128])
@pytest.mark.parametrize("kind", ["fp8", "fp8 with scales"])
def test_a_nan_of_e4m3_stays_where_it_is(dtype, kind, head_size):
    """In the one element of a value, whether the rest of its step is read as numbers without NaN or not."""
    layout, q, caches = make_step([(1, 40), (1, 90), (20, 90)], 4, 2, head_size, 16, dtype)
    cache = cache_of(kind, *caches)
    block = layout.block_tables[1, 5]
    as_bytes(cache.value)[block, 3, 1, 37] = 0xFF
    found = native_attention.attention(q, cache, prepare(native_attention, layout), CausalScores(0.125))
    expected = torch.zeros_like(found, dtype=torch.bool)
    expected[1, 2:, 37] = True
    assert torch.equal(found.isnan(), expected)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extras", [(0.8, None), (None, SINKS), (0.8, SINKS)], ids=["cap", "sinks", "both"])
@pytest.mark.parametrize("window", [None, 100])
def test_soft_cap_and_sinks(dtype, kind, extras, window):
    """Of few rows and many, in one piece of the context and in several, with and without a window."""
    shape = [(1, 5), (20, 20), (1, 1300), (2, 1100), (40, 90), (70, 1200)]
    layout, q, caches = make_step(shape, 4, 2, 32, 16, dtype, window=window)
    cache = cache_of(kind, *caches)
    expected = assert_native(layout, q, cache, 0.2, *extras)
    plain = reference.attention(q, cache, layout, CausalScores(0.2))
    assert (expected.float() - plain.float()).abs().max() > 0.05


@DTYPES
def test_a_sink_far_above_or_below_all_scores(dtype):
    layout, q, caches = make_step([(1, 40), (30, 50)], 4, 2, 32, 16, dtype)
    cache = LayerCache(*caches)
    sinks = torch.tensor([200.0, -200.0, 200.0, -200.0])
    found = native_attention.attention(q, cache, prepare(native_attention, layout), CausalScores(0.2, None, sinks))
    assert not found[:, ::2].any()
    assert torch.equal(
        found[:, 1::2],
        native_attention.attention(q, cache, prepare(native_attention, layout), CausalScores(0.2))[:, 1::2],
    )


@DTYPES
@QUANTIZED
def test_large_scores(dtype, kind):
    """Of some hundreds, most of them above what came first: bases are revised."""
    layout, q, caches = make_step([(200, 500), (1, 300), (3, 90), (40, 40)], 4, 2, 32, 16, dtype)
    assert_native(layout, q * 30, cache_of(kind, *caches), 1.0, float32=1e-3)


@pytest.mark.parametrize("num_rows", [1, 40])
def test_queries_of_extremes(num_rows):
    """Over integers a query may become integers, too: sums of the largest do not overflow; any size will do."""
    layout, q, _ = make_step([(num_rows, 70)], 2, 1, 512, 16, torch.bfloat16)
    key = torch.full((len(layout.block_tables[0]) + 2, 16, 1, 512), 127.0)
    key[::2] *= -1
    cache = cache_of("int8", key, torch.randn(key.shape, generator=torch.Generator().manual_seed(0)))
    for size in (1e-30, 1e30):
        assert_native(layout, torch.full_like(q, size), cache, 1e-5 / size)


@pytest.mark.parametrize("num_rows", [1, 7, 40])
def test_a_query_with_one_large_element(num_rows):
    """Its integers are as large as any: more than two digits hold if only the sum of the others set their unit."""
    layout, q, caches = make_step([(num_rows, 70)], 2, 1, 128, 16, torch.bfloat16)
    q[..., 5] = 3000
    assert_native(layout, q, cache_of("int8", *caches), 2e-4)


@QUANTIZED
def test_every_byte_is_read_as_what_it_is(kind, isa):
    """A decode that sees one key gives its values, of all 256 bytes, NaN as NaN. Small numbers are not flushed."""
    num_values = 256
    cache = empty_cache(kind, 1, 16, 2, num_values)
    values = as_bytes(cache.value) if kind != "int8" else cache.value.view(torch.uint8)
    values[0, 0, :, :num_values] = torch.arange(num_values, dtype=torch.uint8)
    if kind == "int8":
        values[0, 0, :, num_values:] = torch.tensor([2.0**-3]).half().view(torch.uint8)
    layout, q, _ = make_step([(1, 1)], 2, 2, num_values, 16, torch.float32)
    layout = dataclasses.replace(layout, block_tables=torch.zeros(1, 1, dtype=torch.int64))
    for dtype in (torch.float32, torch.bfloat16):
        found = native_attention.attention(q.to(dtype) * 0, cache, prepare(native_attention, layout), CausalScores(1.0))
        expected = reference.attention(q.to(dtype) * 0, cache, layout, CausalScores(1.0))
        torch.testing.assert_close(
            found, expected, atol=0, rtol=2**-7 if dtype == torch.bfloat16 else 0, equal_nan=True
        )
        assert found.isnan().any() == (kind != "int8")


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head_size", [2, 16, 40, 80, 128])
@pytest.mark.parametrize("with_norms", [False, True])
def test_what_is_written(dtype, kind, head_size, with_norms):
    """Values bit for bit as the golden version rounds them, nothing beside; keys but for the rotation's rounding."""
    num_rows = 40
    qkv = torch.randn(num_rows, 10, head_size, generator=torch.Generator().manual_seed(0)).to(dtype)[:, :8]
    qkv[3, 6:] *= 1e5  # saturates e4m3
    qkv[4, 6:] = 0
    qkv[5, 6:] *= 1e-8
    weights = (torch.randn(head_size, generator=torch.Generator().manual_seed(s)).to(dtype) for s in (2, 3))
    head_norm = HeadNorm(*weights, 1e-6) if with_norms else None
    angles = torch.outer(torch.arange(50.0), 1 / 100 ** torch.linspace(0, 1, head_size // 2))
    cos_sin, positions = torch.cat((angles.cos(), angles.sin()), dim=-1), torch.arange(num_rows)
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(2))[:num_rows]
    slots[20:22] = -1
    found, expected = (empty_cache(kind, 4, 16, 2, head_size, dtype=dtype) for _ in range(2))
    arguments = (qkv, head_norm, positions, cos_sin)
    q = native_attention.rope_and_cache(*arguments, found, slots)
    gold = reference.rope_and_cache(*arguments, expected, slots)
    bound = 4e-6 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(q, gold, atol=bound, rtol=bound)
    assert torch.equal(as_bytes(found.value), as_bytes(expected.value))
    written = slots[slots >= 0]
    beside = [slot for slot in range(64) if slot not in written]
    keys, gold_keys = (as_bytes(side).flatten(0, 1) for side in (found.key, expected.key))
    assert torch.equal(keys[beside], gold_keys[beside])
    if kind == "plain":
        torch.testing.assert_close(keys[written], gold_keys[written], atol=bound, rtol=bound)
    else:
        assert (keys[written] == gold_keys[written]).float().mean() > 0.98


def test_rounding_to_8_bits_of_all_magnitudes():
    """Every float16 number, in rows of their neighbours, and NaN, as the golden version rounds them."""
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    x = x[x.isfinite()].reshape(-1, 1, 32).repeat(1, 3, 1) + 0.0  # a rotation by nothing loses the sign of zero
    x = torch.cat((x, x * (1 + 2**-12)))  # neither representable nor half-way
    cos_sin = torch.cat((torch.ones(1, 16), torch.zeros(1, 16)), dim=-1)
    for kind in KINDS[1:]:
        found, expected = (empty_cache(kind, len(x), 1, 1, 32) for _ in range(2))
        positions, slots = torch.zeros(len(x), dtype=torch.int64), torch.arange(len(x))
        native_attention.rope_and_cache(x, None, positions, cos_sin, found, slots)
        reference.write_kv(x[:, 1:2], x[:, 2:3], expected, slots)
        for side, gold in zip(found.tensors, expected.tensors, strict=True):
            assert torch.equal(as_bytes(side).view(torch.uint8), as_bytes(gold).view(torch.uint8)), kind


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_nan_stays_one(kind):
    qkv = torch.randn(1, 3, 32)
    qkv[:, 1:, 5] = torch.nan
    cos_sin, slots = torch.cat((torch.ones(1, 16), torch.zeros(1, 16)), dim=-1), torch.zeros(1, dtype=torch.int64)
    cache = empty_cache("fp8" if kind != "int8" else kind, 1, 1, 1, 32)
    native_attention.rope_and_cache(qkv, None, slots, cos_sin, cache, slots)
    for side in cache.tensors:
        read = int8_cache.dequantize(side, torch.float32) if kind == "int8" else side.float()
        assert read[0, 0, 0, 5].isnan()


@QUANTIZED
def test_a_recorded_step(kind, workspace):
    """Writing and attention over such a cache are native calls, which a replay repeats on other contents."""
    layout, _, caches = make_step([(1, 30), (1, 70)], 4, 2, 32, 16, torch.bfloat16)
    cache = cache_of(kind, *caches)
    qkv = torch.randn(2, 8, 32).bfloat16()
    cos_sin, positions = torch.randn(100, 32), torch.tensor([29, 69])
    prepared = prepare(native_attention, layout)

    def step():
        q = native_attention.rope_and_cache(qkv, None, positions, cos_sin, cache, layout.slot_mapping)
        return native_attention.attention(q, cache, prepared, CausalScores(0.2, 30.0, SINKS))

    with Recording(workspace) as recording:
        out = step()
    assert recording.refusal is None
    qkv.copy_(torch.randn(2, 8, 32))
    expected = step()
    assert not torch.equal(out, expected)
    assert recording.replay()
    assert torch.equal(out, expected)
