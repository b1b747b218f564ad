"""Ops: the table of functions that do a model's arithmetic. A model calls the table and never knows which version.

Sizes: T tokens (rows) of this step, H hidden size, Hq query heads, Hkv key/value heads (Hq is a multiple of it),
D head size, V vocabulary. Activations have the model's dtype; every function works on the device of its arguments,
none keeps state, and all are called under `torch.inference_mode()`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lullm.errors import UnsupportedError
from lullm.log import get_logger
from lullm.ops import grouped_attention, quantized_reference, quantized_torch, reference, torch_cpu
from lullm.ops.attention_layout import AttentionLayout, KVCache
from lullm.ops.cpu import native, quantized_native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.cpu.processor import default_num_threads
from lullm.ops.draw_table import DrawTable
from lullm.ops.quantized_weight import QuantizedLayout

logger = get_logger(__name__)

_Maybe = Tensor | None


def _keep_weight(weight: Tensor) -> None:
    """For versions that read weights as the checkpoint has them."""


def _to_float32(x: Tensor) -> Tensor:
    return x.float()


@dataclass(frozen=True, slots=True)
class Ops:
    """The functions, by their arguments and results.

    Args:
        name: of the version, for logs and tests.
        embedding: (token_ids `[T]` int64, weight `[V, H]`) -> `[T, H]`.
        linear: (x `[T, in]`, weight `[out, in]`, bias `[out]` or None) -> `[T, out]`.
        logits: (x `[T, H]`, weight `[V, H]`) -> `[T, V]` float32; versions may round to x's dtype before.
        linear_silu_mul: (x `[T, in]`, gate_up_weight `[2 * I, in]`: gates first, bias `[2 * I]` or None) -> `[T, I]`:
            `silu(gate) * up` of the two products (https://arxiv.org/abs/2002.05202).
        rms_norm: (x `[..., N]`, weight `[N]`, eps) -> like x. Mean square in float32, rounded to x's dtype before
            the weight is applied (https://arxiv.org/abs/1910.07467).
        add_rms_norm: (x `[T, H]`, residual `[T, H]`, weight `[H]`, eps) -> (rms_norm of the sum, the sum). The
            contents of both arguments are undefined afterwards.
        rope_and_cache: (qkv `[T, Hq + 2 * Hkv, D]`, q_norm_weight and k_norm_weight `[D]` or None, eps, positions
            `[T]` int64, cos_sin_cache `[max_len, D]` float32: D/2 cosines, then D/2 sines, key_cache, value_cache,
            slot_mapping `[T]` int64, key_scales and value_scales `[Hkv]` float32 or None) -> q `[T, Hq, D]`. Norms
            every query and key head that has a weight, rotates both in pairs (i, i + D/2)
            (https://arxiv.org/abs/2104.09864), and writes keys and values into both caches in place, quantising if
            they are int8 (`int8_cache`) or fp8 (`float8_cache`, the one kind that has scales; None: all are 1). A row
            of slot -1 is written nowhere.
        prepare_attention: (layout) -> what `attention` of the same table wants; once per step, shared by all layers.
        attention: (q `[T, Hq, D]`, key_cache, value_cache, prepared, scale, key_scales and value_scales as above) ->
            `[T, Hq, D]`. Causal: the row at position p sees the positions 0..p of its own sequence (with a window:
            the last so many of them), all read from the cache (`rope_and_cache` first).
        copy_blocks: (kv_caches of all layers, pairs of (source, destination) block ids) -> None; copies whole blocks
            in every layer, as if one pair after the other.
        swap_blocks: (sources, destinations: the caches of all layers in two pools, pairs of (source, destination)
            block ids) -> None; copies whole blocks between the pools. No destination stands in two pairs.
        pack_weight_: (weight `[out, in]`) -> None; rearranges in place what `linear` and `embedding` of this table are
            given, once, when it is complete. Shape and dtype stay, but rows are no longer rows.
        unpack_weight_: (weight) -> None; undoes it.
        quantized_embedding: (token_ids `[T]` int64, weight of 8 bits and its layout (`quantized_weight`), dtype) ->
            `[T, H]` of that dtype.
        quantized_linear: (x `[T, in]`, weight and its layout, bias `[out]` or None) -> `[T, out]`. Versions may round
            x to 16-bit integers times a scale per row.
        quantized_linear_silu_mul: as `linear_silu_mul`, of a quantized weight and its layout.
        to_float32: (x) -> the same values in float32; x itself if that is its type.
        draw_tokens: (logits `[N, V]` float32, draw table, whether to leave in the logits what was drawn from) -> `[N]`
            int64, NO_TOKEN where there is none; see `DrawTable`. Does not synchronise. None: the sampler's own way.
        is_recordable: whether a graph may record attention: no function waits for the device, and launches follow
            from bounds, not from lengths. On a CPU: whether it is worth trying (`ops.cpu.recording`).
    """

    name: str
    embedding: Callable[[Tensor, Tensor], Tensor]
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    logits: Callable[[Tensor, Tensor], Tensor]
    linear_silu_mul: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rope_and_cache: Callable[
        [Tensor, _Maybe, _Maybe, float, Tensor, Tensor, Tensor, Tensor, Tensor, _Maybe, _Maybe], Tensor
    ]
    prepare_attention: Callable[[AttentionLayout], Any]
    attention: Callable[[Tensor, Tensor, Tensor, Any, float, _Maybe, _Maybe], Tensor]
    copy_blocks: Callable[[list[KVCache], list[tuple[int, int]]], None]
    swap_blocks: Callable[[list[KVCache], list[KVCache], list[tuple[int, int]]], None]
    pack_weight_: Callable[[Tensor], None] = _keep_weight
    unpack_weight_: Callable[[Tensor], None] = _keep_weight
    quantized_embedding: Callable[[Tensor, Tensor, QuantizedLayout, torch.dtype], Tensor] = (
        quantized_torch.quantized_embedding
    )
    quantized_linear: Callable[[Tensor, Tensor, QuantizedLayout, Tensor | None], Tensor] = (
        quantized_torch.quantized_linear
    )
    quantized_linear_silu_mul: Callable[[Tensor, Tensor, QuantizedLayout, Tensor | None], Tensor] = (
        quantized_torch.quantized_linear_silu_mul
    )
    to_float32: Callable[[Tensor], Tensor] = _to_float32
    draw_tokens: Callable[[Tensor, DrawTable, bool], Tensor] | None = None
    is_recordable: bool = False


REFERENCE_OPS = Ops(
    name="reference",
    embedding=reference.embedding,
    linear=reference.linear,
    logits=reference.logits,
    linear_silu_mul=reference.linear_silu_mul,
    rms_norm=reference.rms_norm,
    add_rms_norm=reference.add_rms_norm,
    rope_and_cache=reference.rope_and_cache,
    prepare_attention=reference.prepare_attention,
    attention=reference.attention,
    copy_blocks=reference.copy_blocks,
    swap_blocks=reference.swap_blocks,
    quantized_embedding=quantized_reference.quantized_embedding,
    quantized_linear=quantized_reference.quantized_linear,
    quantized_linear_silu_mul=quantized_reference.quantized_linear_silu_mul,
)
"""The golden version: what the words above say, in the plainest torch, as slow as it may be."""

TORCH_CPU_OPS = Ops(
    name="torch_cpu",
    embedding=torch_cpu.embedding,
    linear=torch_cpu.linear,
    logits=torch_cpu.logits,
    linear_silu_mul=torch_cpu.linear_silu_mul,
    rms_norm=torch_cpu.rms_norm,
    add_rms_norm=torch_cpu.add_rms_norm,
    rope_and_cache=torch_cpu.rope_and_cache,
    prepare_attention=grouped_attention.prepare_attention,
    attention=grouped_attention.attention,
    copy_blocks=torch_cpu.copy_blocks,
    swap_blocks=torch_cpu.swap_blocks,
)
"""Torch on a CPU, fast without code of our own to compile."""


NATIVE_CPU_OPS = Ops(
    name="native_cpu",
    embedding=native.embedding,
    linear=native.linear,
    logits=native.logits,
    linear_silu_mul=native.linear_silu_mul,
    rms_norm=native.rms_norm,
    add_rms_norm=native.add_rms_norm,
    rope_and_cache=native.rope_and_cache,
    prepare_attention=native.prepare_attention,
    attention=native.attention,
    copy_blocks=native.copy_blocks,
    swap_blocks=native.swap_blocks,
    pack_weight_=native.pack_weight_,
    unpack_weight_=native.unpack_weight_,
    quantized_embedding=quantized_native.quantized_embedding,
    quantized_linear=quantized_native.quantized_linear,
    quantized_linear_silu_mul=quantized_native.quantized_linear_silu_mul,
    to_float32=native.to_float32,
    draw_tokens=native.draw_tokens,
    is_recordable=True,
)
"""Own kernels on a CPU; usable where `ops.cpu.library.absence()` is None."""


def select_ops(device: str, attention_backend: str = "auto") -> Ops:
    """The fastest version for a device ('cpu', 'cuda'); on a CPU `ops.threads` says how many threads it uses.

    Args:
        attention_backend: 'auto': the fastest, 'torch': keys and values are gathered for torch's fused attention,
            'triton': kernels of our own, on a GPU.

    Raises:
        UnsupportedError: there is no version for the device, or not with that attention.
        ConfigError: see `ops.cpu.library.load_library`.
    """
    if attention_backend not in ("auto", "triton", "torch"):
        raise UnsupportedError(f"there is no attention_backend {attention_backend!r}; use auto, triton or torch")
    if torch.device(device).type != "cpu":
        return _select_gpu_ops(device, attention_backend)
    if attention_backend == "triton":
        raise UnsupportedError("attention_backend='triton' needs a GPU; on a CPU use auto or torch")
    ops = _select_cpu_ops()
    if attention_backend == "torch":
        return dataclasses.replace(
            ops,
            name=f"{ops.name} with torch's attention",
            prepare_attention=grouped_attention.prepare_attention,
            attention=grouped_attention.attention,
            is_recordable=False,
        )
    return ops


def _select_gpu_ops(device: str, attention_backend: str) -> Ops:
    if torch.device(device).type != "cuda" or not torch.cuda.is_available():
        raise UnsupportedError(f"there are no ops for device {device!r}: torch sees no such GPU; use device='cpu'")
    try:
        from lullm.ops.triton.table import GATHERED_OPS, TRITON_OPS
    except ImportError as error:
        raise UnsupportedError(f"a GPU needs the package triton ({error}); install lullm[triton]") from error
    ops = GATHERED_OPS if attention_backend == "torch" else TRITON_OPS
    logger.info("GPU ops: %s", ops.name)
    return ops


def _select_cpu_ops() -> Ops:
    library = load_library()
    if library is None:
        logger.info("torch's kernels serve: native CPU ops are %s", absence())
        return TORCH_CPU_OPS
    native.set_num_threads(default_num_threads())
    logger.info("native CPU ops: %s", library.isa)
    return NATIVE_CPU_OPS
