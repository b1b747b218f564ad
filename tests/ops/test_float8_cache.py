"""The fp8 KV cache: its rounding, its scales, and that all versions write, move and read the same bytes."""

import pytest
import torch

from lullm.ops.cache.float8_cache import FLOAT8, dequantize, quantize
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cpu.library import absence
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS

VERSIONS = [TORCH_CPU_OPS, REFERENCE_OPS] + ([NATIVE_CPU_OPS] if absence() is None else [])
SCALES = torch.tensor([0.5, 3.0]), torch.tensor([2.0, 0.25])


def test_rounding():
    """To nearest, ties to even, saturating: 3 bits of mantissa, subnormal below 2**-6 with steps of 2**-9."""
    pairs = [
        *((0.0, 0.0), (1.0, 1.0), (1.0625, 1.0), (1.0626, 1.125), (1.1875, 1.25), (-1.1875, -1.25), (440, 448)),
        *((400, 384), (432, 448), (448, 448), (460, 448), (1e9, 448), (-1e9, -448), (float("inf"), 448)),
        *((2.0**-9, 2.0**-9), (1.5 * 2.0**-9, 2.0**-8), (2.5 * 2.0**-9, 2.0**-8), (2.0**-10, 0.0), (-1e-9, 0.0)),
    ]
    x, expected = torch.tensor(pairs).unbind(1)
    assert torch.equal(quantize(x[None, None], None).float()[0, 0], expected)
    assert quantize(torch.full((1, 1, 1), torch.nan), None).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_scale_moves_the_range(dtype):
    x = torch.randn(50, 2, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    for scales in (None, *SCALES):
        factors = torch.ones(2, 1) if scales is None else scales[:, None]
        values = quantize(x, scales)
        found = dequantize(values, scales, dtype)
        assert found.dtype == dtype and values.dtype == FLOAT8
        assert torch.equal(found, (values.float() * factors).to(dtype)), "every byte by its own head's scale"
        wanted = x.float() / factors
        step = torch.exp2(wanted.abs().clamp_min(2.0**-6).log2().floor() - 3)
        assert ((values.float() - wanted).abs() <= step / 2).all()
    assert torch.equal(quantize(dequantize(values, SCALES[1], torch.float32), SCALES[1]).float(), values.float())


@pytest.mark.parametrize("scales", [SCALES, (None, None)], ids=["scales", "none"])
@pytest.mark.parametrize("ops", VERSIONS, ids=lambda ops: ops.name)
def test_written_and_moved(ops, scales):
    qkv = torch.randn(7, 8, 16, generator=torch.Generator().manual_seed(0)) * 30
    k, v = (quantize(part, s).float() for part, s in zip((qkv[:6, 4:6], qkv[:6, 6:8]), scales, strict=True))
    cos_sin = torch.cat((torch.ones(1, 8), torch.zeros(1, 8)), dim=-1)
    layers = [LayerCache(*(torch.zeros(4, 8, 2, 16, dtype=FLOAT8) for _ in range(2)), *scales) for _ in range(2)]
    host = [LayerCache(*(torch.zeros(3, 8, 2, 16, dtype=FLOAT8) for _ in range(2))) for _ in range(2)]
    slots = [5, 31, 0, 8, 9, 23]
    for cache in layers:
        # Position 0 is not rotated: the cache holds what it was given.
        ops.rope_and_cache(
            qkv, None, torch.zeros(7, dtype=torch.int64), cos_sin, cache,
            torch.tensor([*slots, -1]),
        )  # fmt: skip
    written = layers[0].value.float().view(-1, 2, 16)
    assert torch.equal(written[slots], v) and written.abs().sum(dim=(1, 2)).count_nonzero() == 6
    ops.swap_blocks(layers, host, [(1, 2), (3, 0)])
    ops.swap_blocks(host, layers, [(2, 3)])
    ops.copy_blocks(layers, [(3, 0)])
    for cache in layers:
        assert torch.equal(cache.key[0, :2].float(), k[3:5]) and torch.equal(cache.value[0, :2].float(), v[3:5])
