"""A digest of what each native op computes, as JSON: equal on two machines if all bits are.

    python tests/ops/emulated/digests.py avx2

Inputs are multiples of 1/64 from integers, since torch's normal numbers differ in the last place between processors.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache import float8_cache
from lullm.ops.cache.int8_cache import quantize
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cpu import native, native_attention, native_draw, quantized_native
from lullm.ops.cpu.library import load_library
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.draw_table import DrawTable
from lullm.ops.quantized.weight import QuantizedLayout
from lullm.types.draw import Draw, DrawParams

ROWS = (1, 2, 3, 7, 20)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Between -2 and 2."""
    integers = np.random.default_rng(seed).integers(-128, 129, shape)
    return torch.from_numpy(integers / 64).to(dtype)


def _linear(dtype: torch.dtype) -> Iterator[Tensor]:
    """Whole panels of 32 outputs, and a rest of 4 rows that lie as they are."""
    weight, bias = numbers(100, 544, dtype=dtype, seed=1), numbers(100, dtype=dtype, seed=2)
    native.pack_weight_(weight)
    for rows in ROWS:
        x = numbers(rows, 544, dtype=dtype, seed=3)
        yield native.linear(x, weight, bias)
        yield native.logits(x, weight)


def _gated_linear(dtype: torch.dtype) -> Iterator[Tensor]:
    weight = numbers(128, 96, dtype=dtype, seed=1)
    native.pack_weight_(weight)
    for rows in ROWS:
        for activation in ("silu", "gelu", "gelu_tanh"):
            yield native.gated_linear(numbers(rows, 96, dtype=dtype), weight, None, activation)


def _norms(dtype: torch.dtype) -> Iterator[Tensor]:
    weight, x = numbers(100, dtype=dtype, seed=1), numbers(5, 100, dtype=dtype)
    yield native.rms_norm(x, weight, 1e-6)
    yield from native.add_rms_norm(x, numbers(5, 100, dtype=dtype, seed=2), weight, 1e-6)
    yield native.layer_norm(x, weight, weight, 1e-5)


def _activations(dtype: torch.dtype) -> Iterator[Tensor]:
    x = numbers(3, 100, dtype=dtype) * 8
    for activation in ("silu", "gelu", "gelu_tanh", "relu"):
        yield native.activate(x, activation)
    native.soft_cap_(x, 5.0)
    yield x


def _caches(dtype: torch.dtype) -> Iterator[tuple[LayerCache, LayerCache]]:
    """Keys and values [blocks, 16, 2, 48] of each format, and the same memory to write to."""
    sides = [numbers(12, 16, 2, 48, dtype=dtype, seed=seed) for seed in (5, 6)]
    for change in (lambda side: side.clone(), quantize, lambda side: float8_cache.quantize(side, None)):
        yield LayerCache(*map(change, sides)), LayerCache(*map(change, sides))


def _attention(dtype: torch.dtype) -> Iterator[Tensor]:
    """A decode, a chunk that ends within a block, and a prompt with more rows than are done at once."""
    query_lens, context_lens = [1, 5, 40], [130, 37, 40]
    tables = torch.tensor([[0, 3, 1, 7, 2, 8, 4, 5, 6], [9, 10, 11, 0, 0, 0, 0, 0, 0], [2, 3, 4, 0, 0, 0, 0, 0, 0]])
    slots = [0] * sum(query_lens)
    q = numbers(sum(query_lens), 4, 48, dtype=dtype, seed=7)
    for window, soft_cap in ((None, None), (20, None), (None, 20.0)):
        layout = AttentionLayout(query_lens, context_lens, tables, torch.tensor(slots), 16, window)
        prepared = native_attention.prepare_attention(DeviceLayout.of(layout))
        for cache, _ in _caches(dtype):
            yield native_attention.attention(q, cache, prepared, CausalScores(0.2, soft_cap))


def _rope_and_cache(dtype: torch.dtype) -> Iterator[Tensor]:
    qkv, positions = numbers(3, 8, 48, dtype=dtype), torch.tensor([0, 7, 30])
    weight = numbers(48, dtype=dtype, seed=2)
    cos_sin, slots = numbers(40, 48, dtype=torch.float32, seed=9), torch.tensor([5, 100, 17])
    for _, cache in _caches(dtype):
        for norm in (None, HeadNorm(weight, weight, 1e-6)):
            yield native_attention.rope_and_cache(qkv, norm, positions, cos_sin, cache, slots)
            yield from (cache.key, cache.value)


def _quantized(dtype: torch.dtype) -> Iterator[Tensor]:
    for bits in (8, 4):
        layout = QuantizedLayout(bits, 200, 640)
        storage = torch.zeros(layout.shape, dtype=torch.uint8)
        quantized_native.quantize_rows_(storage, layout, 0, numbers(200, 640, dtype=dtype, seed=4))
        yield storage
        for rows in ROWS:
            yield quantized_native.quantized_linear(numbers(rows, 640, dtype=dtype), storage, layout, None)


def _draws() -> Iterator[Tensor]:
    options: list[dict[str, float]] = [
        {},
        {"temperature": 0.0},
        {"top_k": 40},
        {"top_p": 0.9, "temperature": 0.7},
        {"min_p": 0.1},
    ] * 4
    draws = [Draw(0, 0, DrawParams(**given)) for given in options]
    keys = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, len(draws))
    yield native_draw.draw_tokens(numbers(len(draws), 1000, dtype=torch.float32) * 4, DrawTable.of(draws, keys, 1000))


OPS: dict[str, Callable[[torch.dtype], Iterator[Tensor]]] = {
    "linear": _linear, "gated_linear": _gated_linear, "norms": _norms, "activations": _activations,
    "attention": _attention, "rope_and_cache": _rope_and_cache, "quantized": _quantized,
}  # fmt: skip


def digest(results: Iterator[Tensor]) -> str:
    sha = hashlib.sha256()
    for result in results:
        sha.update(result.contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def main(isa: str) -> None:
    library = load_library()
    assert library is not None and library.handle.lullm_select_isa(isa.encode())
    native.set_num_threads(2)
    dtypes = (torch.float32, torch.bfloat16)
    found = {f"{name} {dtype}": digest(op(dtype)) for name, op in OPS.items() for dtype in dtypes}
    found["draws"] = digest(_draws())
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
