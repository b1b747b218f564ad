"""Norm, rotation and cache write in one kernel, against the golden version."""

import dataclasses

import pytest
import torch

from lullm.errors import UnsupportedError
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.selection import REFERENCE_OPS
from lullm.ops.triton.device import IS_INTERPRETED, launch_device
from lullm.ops.triton.rope_cache import rope_and_cache, write_cache

DEVICE = launch_device()
DTYPES = [torch.float32, torch.float16] + ([] if IS_INTERPRETED else [torch.bfloat16])
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
NUM_BLOCKS, BLOCK_SIZE = 3, 4


def make_arguments(heads, head_size, dtype, num_rows=5, normed=True, cache_dtype=None):
    generator = torch.Generator().manual_seed(0)
    num_q_heads, num_kv_heads = heads

    def random(*shape):
        return torch.randn(shape, generator=generator)

    angles = random(50, head_size // 2) * 3
    head_norm = HeadNorm(*(random(head_size).to(dtype) for _ in range(2)), 1e-6) if normed else None
    cache_shape = (NUM_BLOCKS, BLOCK_SIZE, num_kv_heads, head_size)
    caches = [torch.full(cache_shape, 7.0).to(cache_dtype or dtype) for _ in range(2)]
    return [
        (random(num_rows, num_q_heads + 2 * num_kv_heads, head_size) * 2).to(dtype),
        head_norm,
        torch.tensor([3, 49, 0, 3, 17][:num_rows]),
        torch.cat((angles.cos(), angles.sin()), dim=-1),
        LayerCache(*caches),
        torch.tensor([11, -1, 0, 5, 6][:num_rows]),
    ]


def on_device(arguments):
    """Copies of the arguments, the tensors inside of records included."""

    def move(x):
        if isinstance(x, HeadNorm | LayerCache):
            return type(x)(*(move(getattr(x, field.name)) for field in dataclasses.fields(x)))
        return x.to(DEVICE, copy=True) if isinstance(x, torch.Tensor) else x

    return [move(x) for x in arguments]


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads, head_size", [((4, 2), 16), ((14, 2), 64), ((3, 3), 80), ((12, 9), 8)], ids=str)
def test_like_the_reference(heads, head_size, dtype, normed):
    arguments = make_arguments(heads, head_size, dtype, normed=normed)
    given = on_device(arguments)
    actual = rope_and_cache(*given)
    expected = REFERENCE_OPS.rope_and_cache(*arguments)
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(actual.cpu(), expected, **tolerance)
    for cache, expected_cache in zip(given[4].tensors, arguments[4].tensors, strict=True):
        torch.testing.assert_close(cache.cpu(), expected_cache, **tolerance)
        assert (cache.cpu().view(-1, *cache.shape[2:])[[1, 2, 3, 4, 7, 8, 9, 10]] == 7).all()  # no row's slots


@pytest.mark.parametrize("with_scales", [False, True])
def test_float8_cache(with_scales):
    """Within half a step of e4m3 of what would be written, saturated beyond its range; mostly the golden byte."""
    arguments = make_arguments((4, 2), 16, torch.float32, cache_dtype=torch.float8_e4m3fn)
    arguments[0][:, -2:] *= torch.logspace(-6, 3, 16)  # values from subnormal to beyond 448
    plain = [*arguments]
    plain[4] = LayerCache(*(torch.zeros(side.shape) for side in arguments[4].tensors))
    REFERENCE_OPS.rope_and_cache(*plain)
    scales = [torch.tensor([0.5, 2.0]), torch.tensor([4.0, 0.25])] if with_scales else []
    arguments[4] = LayerCache(*arguments[4].tensors, *scales)
    given = on_device(arguments)
    rope_and_cache(*given)
    REFERENCE_OPS.rope_and_cache(*arguments)
    for side, (cache, expected) in enumerate(zip(given[4].tensors, plain[4].tensors, strict=True)):
        scale = scales[side][:, None] if with_scales else 1.0
        slots = [11, 0, 5, 6]
        actual = cache.cpu().float().view(-1, 2, 16)[slots]
        wanted = (expected.view(-1, 2, 16)[slots] / scale).clamp(-448, 448)
        step = torch.exp2(wanted.abs().clamp_min(2.0**-6).log2().floor() - 3)
        assert ((actual - wanted).abs() <= step / 2 * (1 + 1e-5)).all()
        assert (actual.abs() == 448).any() == (side == 1)
        assert (cache.cpu().float() == arguments[4].tensors[side].float()).float().mean() > 0.99, "ties are rare"


def test_what_is_no_number_stays_none():
    arguments = make_arguments((4, 2), 16, torch.float32, cache_dtype=torch.float8_e4m3fn)
    arguments[0][2, 6:] = torch.nan
    given = on_device(arguments)
    rope_and_cache(*given)
    is_nan = given[4].value.cpu().float().isnan().view(-1, 2, 16)
    assert is_nan[0].all() and not is_nan[1:].any()


def test_a_gpu_without_e4m3_is_refused(monkeypatch):
    monkeypatch.setattr("lullm.ops.triton.rope_cache.converts_float8", lambda: False)
    given = on_device(make_arguments((4, 2), 16, torch.float32, cache_dtype=torch.float8_e4m3fn))
    with pytest.raises(UnsupportedError, match=r"8\.9"):
        rope_and_cache(*given)
    rope_and_cache(*on_device(make_arguments((4, 2), 16, torch.float32)))


def test_heads_that_do_not_fill_their_row():
    """The rows may stand apart, as they do in a wider matrix."""
    arguments = make_arguments((4, 2), 16, torch.float32)
    wide = torch.zeros(5, 10, 16)
    wide[:, :8] = arguments[0]
    given = on_device(arguments)
    given[0] = wide.to(DEVICE)[:, :8]
    actual = rope_and_cache(*given).cpu()
    torch.testing.assert_close(actual, REFERENCE_OPS.rope_and_cache(*arguments), atol=3e-6, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write_without_rotation(dtype):
    qkv = make_arguments((4, 2), 16, dtype)[0]
    kv, slots = qkv[:, 4:], torch.tensor([11, -1, 0, 5, 6])
    cache = LayerCache(*torch.full((2, NUM_BLOCKS, BLOCK_SIZE, 2, 16), 7.0, dtype=dtype, device=DEVICE))
    expected = LayerCache(*torch.full((2, NUM_BLOCKS, BLOCK_SIZE, 2, 16), 7.0, dtype=dtype))
    write_cache(kv.to(DEVICE), cache, slots.to(DEVICE))
    REFERENCE_OPS.write_cache(kv, expected, slots)
    assert torch.equal(cache.key.cpu(), expected.key) and torch.equal(cache.value.cpu(), expected.value)


def test_a_latent_vector_is_written_once_for_keys_and_values():
    """One row stands for both, and so does one tensor of the cache."""
    row, slots = make_arguments((1, 1), 16, torch.float32)[0][:, 0], torch.tensor([11, -1, 0, 5, 6])
    caches = []
    for write, device in ((write_cache, DEVICE), (REFERENCE_OPS.write_cache, torch.device("cpu"))):
        both = torch.full((NUM_BLOCKS, BLOCK_SIZE, 1, 16), 7.0, device=device)
        write(row.to(device).unsqueeze(1).expand(-1, 2, -1), LayerCache(both, both), slots.to(device))
        caches.append(both.cpu())
    assert torch.equal(*caches) and (caches[0] != 7.0).any()
