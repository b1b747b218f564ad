"""Heads times matrices of their own, and heads as they are into a cache: every version beside the definition."""

import pytest
import torch

from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cpu import native_attention
from lullm.ops.cpu.library import load_library
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS

LIBRARY = load_library()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("num_rows", [1, 2, 9, 64, 300, 1100])
@pytest.mark.parametrize(("size", "out", "num_kept"), [(32, 64, 0), (128, 320, 64), (10, 24, 8), (17, 35, 3)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_multiply_heads(ops, dtype, num_rows, size, out, num_kept, is_transposed):
    """Of heads that are parts of longer rows, by matrices that are parts of a larger one."""
    x = normal(num_rows, 3, size + num_kept + 5, dtype=dtype)
    whole = normal(3, 7 + (size if is_transposed else out), out if is_transposed else size, dtype=dtype, seed=1)
    weight = whole[:, 7:].transpose(1, 2) if is_transposed else whole[:, 7:]
    assert weight.shape == (3, out, size)
    found = ops.multiply_heads(x, weight, num_kept)
    expected = torch.einsum("thn,hon->tho", x[..., :size].double(), weight.double())
    assert found.dtype == dtype and found.shape == (num_rows, 3, out + num_kept)
    tolerance = 2e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(found[..., :out].double(), expected, rtol=tolerance, atol=tolerance * size**0.5)
    assert torch.equal(found[..., out:], x[..., size : size + num_kept])


@pytest.mark.skipif(LIBRARY is None, reason="the native ops are not built here")
@DTYPES
def test_a_row_does_not_depend_on_its_batch(ops, dtype):
    x, weight = normal(40, 4, 48, dtype=dtype), normal(4, 64, 48, dtype=dtype, seed=1)
    whole = ops.multiply_heads(x, weight, 0)
    if ops is NATIVE_CPU_OPS:
        for row in (0, 7, 8, 39):
            assert torch.equal(ops.multiply_heads(x[row : row + 1], weight, 0)[0], whole[row])


@DTYPES
@pytest.mark.parametrize("kind", ["plain", "int8", "plain, one side"])
@pytest.mark.parametrize("num_heads", [1, 2])
def test_write_cache(ops, dtype, kind, num_heads):
    row_len = 26 if kind == "int8" else 24
    cache_dtype = torch.int8 if kind == "int8" else dtype
    slots = torch.tensor([5, 0, -1, 3])

    def written(version, kv):
        sides = [torch.zeros(2, 4, num_heads, row_len, dtype=cache_dtype) for _ in range(2)]
        cache = LayerCache(sides[0], sides[0] if "one side" in kind else sides[1])
        version.write_cache(kv, cache, slots)
        return torch.stack(sides)

    kv = normal(4, 2 * num_heads, 24, dtype=dtype)
    if "one side" in kind:
        kv = torch.cat((kv[:, :num_heads], kv[:, :num_heads]), dim=1)
        if num_heads == 1:  # as latent vectors come
            kv = kv[:, :1].expand(-1, 2, -1)
    assert torch.equal(written(ops, kv), written(REFERENCE_OPS, kv))


@pytest.mark.skipif(LIBRARY is None, reason="the native ops are not built here")
@DTYPES
def test_heads_may_have_the_same_inputs(ops, dtype):
    """Latent vectors, from which keys and values of all heads are made."""
    x, weight = normal(200, 1, 64, dtype=dtype), normal(5, 96, 32, dtype=dtype, seed=1)
    apart = ops.multiply_heads(x.expand(-1, 5, -1).contiguous(), weight, 32)
    assert torch.equal(ops.multiply_heads(x.expand(-1, 5, -1), weight, 32), apart)


def test_many_rows_of_no_whole_panels_are_torchs(monkeypatch):
    """Above the rows that a decode has, torch's products are faster."""
    monkeypatch.setattr(native_attention, "call", lambda *arguments: pytest.fail("a native call"))
    x, weight = normal(257, 2, 16, dtype=torch.float32), normal(2, 8, 16, dtype=torch.float32, seed=1)
    torch.testing.assert_close(
        native_attention.multiply_heads(x, weight, 0), TORCH_CPU_OPS.multiply_heads(x, weight, 0)
    )
