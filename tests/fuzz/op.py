"""The native ops in every instruction set against the golden ones: random shapes, dtypes, batches and windows."""

import random
from collections.abc import Callable
from pathlib import Path

import torch
from ops.test_attention import make_step, prepare
from torch import Tensor

from lullm.ops import reference
from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cpu import native, native_attention, quantized_native
from lullm.ops.cpu.library import load_library
from lullm.ops.quantized import reference as quantized_reference
from lullm.ops.quantized.weight import QuantizedLayout, quantize_rows_

from .target import Target

FLOAT32, BFLOAT16 = 2e-5, 2**-6
"""Parts of the result's scale: sums in another order; one rounding, or two, of a step of 2**-8."""


class OpTarget(Target):
    """A round is one case of one op, in one instruction set, with one to three threads. Without native ops: nothing."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._library = load_library()

    def close(self) -> None:
        if self._library is not None:
            self._library.handle.lullm_select_isa(self._library.isa.encode())
            native.set_num_threads(1)

    def round(self, rng: random.Random) -> None:
        if self._library is None:
            return
        isa = rng.choice(self._library.available_isas)
        assert self._library.handle.lullm_select_isa(isa.encode())
        native.set_num_threads(rng.choice([1, 2, 3]))
        case: Callable[[random.Random, torch.dtype], None] = rng.choice(
            [_linear, _gated_linear, _logits, _norms, _embedding, _quantized, _attention, _attention]
        )
        case(rng, rng.choice([torch.float32, torch.bfloat16]))
        self.counts[case.__name__.strip("_")] += 1
        self.counts[isa] += 1


def _normal(rng: random.Random, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rng.getrandbits(40)))


def _weight(rng: random.Random, num_outputs: int, depth: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[out, in] as it is, and packed."""
    weight = (_normal(rng, num_outputs, depth) / depth**0.5).to(dtype)
    packed = weight.clone()
    native.pack_weight_(packed)
    return weight, packed


def _size(rng: random.Random, most: int) -> int:
    """Multiples of 32 as often as anything else."""
    return 32 * rng.randrange(1, most // 32 + 1) if rng.random() < 0.6 else rng.randrange(1, most)


def _check(found: Tensor, expected: Tensor, factor: float = 1.0) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert found.isfinite().all()
    scale = expected.float().abs().amax(-1, keepdim=True).clamp(min=1) if expected.numel() else 1.0
    error = ((found.float() - expected.float()) / scale).abs()
    bound = factor * (FLOAT32 if found.dtype == torch.float32 else BFLOAT16)
    assert not error.numel() or error.max() <= bound, f"{error.max()} of the scale, {tuple(found.shape)} {found.dtype}"


def _linear(rng: random.Random, dtype: torch.dtype) -> None:
    depth, num_outputs = _size(rng, 1200), _size(rng, 600)
    weight, packed = _weight(rng, num_outputs, depth, dtype)
    x = _normal(rng, rng.choice([0, 1, 2, rng.randrange(1, 40), rng.randrange(1, 300)]), depth).to(dtype)
    bias = _normal(rng, num_outputs).to(dtype) if rng.random() < 0.5 else None
    _check(native.linear(x, packed, bias), reference.linear(x, weight, bias))


def _gated_linear(rng: random.Random, dtype: torch.dtype) -> None:
    depth, num_outputs = _size(rng, 1200), 2 * _size(rng, 300)
    weight, packed = _weight(rng, num_outputs, depth, dtype)
    x = _normal(rng, rng.randrange(1, 100), depth).to(dtype)
    _check(native.gated_linear(x, packed, None, "silu"), reference.gated_linear(x, weight, None, "silu"))


def _logits(rng: random.Random, dtype: torch.dtype) -> None:
    depth = _size(rng, 600)
    weight, packed = _weight(rng, _size(rng, 2000), depth, dtype)
    x = _normal(rng, rng.randrange(1, 70), depth).to(dtype)
    _check(native.logits(x, packed), reference.logits(x, weight))


def _norms(rng: random.Random, dtype: torch.dtype) -> None:
    num_rows, size = rng.randrange(1, 100), _size(rng, 2048)
    x, residual, weight = (_normal(rng, *shape).to(dtype) for shape in ((num_rows, size), (num_rows, size), (size,)))
    _check(native.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    expected = reference.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    for mine, right in zip(native.add_rms_norm(x, residual, weight, 1e-6), expected, strict=True):
        _check(mine, right)


def _embedding(rng: random.Random, dtype: torch.dtype) -> None:
    weight, packed = _weight(rng, _size(rng, 1000), _size(rng, 600), dtype)
    token_ids = torch.tensor(rng.choices(range(len(weight)), k=rng.randrange(1, 50)))
    assert torch.equal(native.embedding(token_ids, packed), weight[token_ids])


def _quantized(rng: random.Random, dtype: torch.dtype) -> None:
    depth, num_outputs = _size(rng, 800), _size(rng, 300)
    weight = _normal(rng, num_outputs, depth) / depth**0.5
    layout = QuantizedLayout(rng.choice([8, 4]), num_outputs, depth)
    storages = []
    for quantize in (quantize_rows_, quantized_native.quantize_rows_):
        storages.append(torch.zeros(layout.shape, dtype=torch.uint8))
        quantize(storages[-1], layout, 0, weight)
    assert torch.equal(*storages), "the native quantization is the same"
    x = _normal(rng, rng.randrange(1, 80), depth).to(dtype)
    found = quantized_native.quantized_linear(x, storages[0], layout, None)
    expected = quantized_reference.quantized_linear(x.float(), storages[0], layout, None).to(dtype)
    _check(found, expected, factor=10)  # x is rounded to 16 bits


def _attention(rng: random.Random, dtype: torch.dtype) -> None:
    num_kv_heads, group = rng.choice([1, 2, 4]), rng.choice([1, 2, 3, 5, 8])
    shape = []
    for _ in range(rng.randrange(1, 8)):
        context_len = rng.choice([rng.randrange(1, 40), rng.randrange(1, 400), rng.randrange(1, 1500)])
        query_len = 1 if rng.random() < 0.5 else rng.randrange(1, min(context_len, 300) + 1)
        shape.append((query_len, context_len))
    head_size, block_size = rng.choice([16, 32, 64, 80, 128]), rng.choice([1, 8, 16, 32])
    window = rng.choice([None, None, rng.randrange(1, 600)])
    heads = group * num_kv_heads, num_kv_heads
    layout, q, caches = make_step(shape, *heads, head_size, block_size, dtype, rng.getrandbits(40), window)
    cache = LayerCache(*caches)
    found = native_attention.attention(q, cache, prepare(native_attention, layout), CausalScores(head_size**-0.5))
    _check(found, reference.attention(q, cache, layout, CausalScores(head_size**-0.5)))
