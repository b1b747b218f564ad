"""The int8 KV cache: its error, and that its scales go where the blocks go (attention over it: test_attention)."""

import pytest
import torch

from lullm.ops.cache.int8_cache import dequantize, quantize
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cpu.library import absence
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS

VERSIONS = [TORCH_CPU_OPS, REFERENCE_OPS] + ([NATIVE_CPU_OPS] if absence() is None else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_size", [2, 6, 64, 128])
def test_a_value_is_off_by_half_a_scale_at_most(dtype, head_size):
    generator = torch.Generator().manual_seed(0)
    sizes = 10 ** (torch.rand(50, 3, 1, generator=generator) * 6 - 3)
    x = (torch.randn(50, 3, head_size, generator=generator) * sizes).to(dtype)
    rows = quantize(x)
    assert rows.shape == (50, 3, head_size + 2) and rows.dtype == torch.int8
    error = (dequantize(rows, torch.float32) - x.float()).abs()
    assert (error <= x.float().abs().amax(-1, keepdim=True) * (0.501 / 127 + 1e-3 / 2)).all()
    assert error.mean() < 0.35 * (x.float().abs().amax(-1, keepdim=True) / 127).mean()
    assert torch.equal(quantize(dequantize(rows, torch.float32)), rows), "what is on the grid stays there"


def test_rows_of_extremes():
    x = torch.tensor([[0.0, 0.0], [1e-9, 0.0], [-1000.0, 1000.0], [3.0, -0.001]])
    expected = torch.tensor([[0.0, 0.0], [0.0, 0.0], [-1000.0, 1000.0], [3.0, 0.0]])
    torch.testing.assert_close(dequantize(quantize(x), torch.float32), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("ops", VERSIONS, ids=lambda ops: ops.name)
def test_a_scale_goes_with_its_block(ops):
    qkv = torch.randn(7, 8, 16, generator=torch.Generator().manual_seed(0))
    k, v = qkv[:6, 4:6], qkv[:6, 6:8]
    cos_sin = torch.cat((torch.ones(1, 8), torch.zeros(1, 8)), dim=-1)
    layers = [LayerCache(*(torch.zeros(4, 8, 2, 18, dtype=torch.int8) for _ in range(2))) for _ in range(2)]
    host = [LayerCache(*(torch.zeros(3, 8, 2, 18, dtype=torch.int8) for _ in range(2))) for _ in range(2)]
    for cache in layers:
        # Position 0 is not rotated: the cache holds what it was given.
        ops.rope_and_cache(
            qkv, None, torch.zeros(7, dtype=torch.int64), cos_sin, cache,
            torch.tensor([5, 31, 0, 8, 9, 23, -1]),
        )  # fmt: skip
    written = dequantize(layers[0].value.view(-1, 2, 18), torch.float32)
    torch.testing.assert_close(written[[5, 31, 0, 8, 9, 23]], v, atol=0.02, rtol=0)
    assert written.abs().sum(dim=(1, 2)).count_nonzero() == 6
    ops.swap_blocks(layers, host, [(1, 2), (3, 0)])
    ops.swap_blocks(host, layers, [(2, 3)])
    ops.copy_blocks(layers, [(3, 0)])
    for cache in layers:
        torch.testing.assert_close(dequantize(cache.key[0, :2], torch.float32), k[3:5], atol=0.02, rtol=0)
        torch.testing.assert_close(dequantize(cache.value[0, :2], torch.float32), v[3:5], atol=0.02, rtol=0)
