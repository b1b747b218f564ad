"""Ops: the table of functions that do a model's arithmetic. A model calls the table and never knows which version.

Sizes: T tokens (rows) of this step, H hidden size, Hq query heads, Hkv key/value heads (Hq is a multiple of it),
D head size, V vocabulary. Activations have the model's dtype; every function works on the device of its arguments,
none keeps state, and all are called under `torch.inference_mode()`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lullm.errors import UnsupportedError
from lullm.log import get_logger
from lullm.ops import grouped_attention, reference, torch_cpu
from lullm.ops.attention_layout import AttentionLayout, KVCache
from lullm.ops.cpu import native
from lullm.ops.cpu.library import absence, load_library

logger = get_logger(__name__)


def _keep_weight(weight: Tensor) -> None:
    """For versions that read weights as the checkpoint has them."""


@dataclass(frozen=True, slots=True)
class Ops:
    """The functions, by their arguments and results.

    Args:
        name: of the version, for logs and tests.
        embedding: (token_ids `[T]` int64, weight `[V, H]`) -> `[T, H]`.
        linear: (x `[T, in]`, weight `[out, in]`, bias `[out]` or None) -> `[T, out]`.
        rms_norm: (x `[..., N]`, weight `[N]`, eps) -> like x. Mean square in float32, rounded to x's dtype before
            the weight is applied (https://arxiv.org/abs/1910.07467).
        add_rms_norm: (x `[T, H]`, residual `[T, H]`, weight `[H]`, eps) -> (rms_norm of the sum, the sum). The
            contents of both arguments are undefined afterwards.
        rope: (q `[T, Hq, D]`, k `[T, Hkv, D]`, positions `[T]` int64, cos_sin_cache `[max_len, D]` float32: D/2
            cosines, then D/2 sines) -> (q, k) rotated, pairs being (i, i + D/2) (https://arxiv.org/abs/2104.09864).
            The contents of the arguments are undefined afterwards.
        silu_mul: (gate_up `[T, 2 * I]`: gate first) -> `silu(gate) * up`, `[T, I]`.
        write_kv: (k `[T, Hkv, D]`, v `[T, Hkv, D]`, key_cache, value_cache, slot_mapping `[T]`) -> None; writes both
            caches in place, quantising if they are int8 (`int8_cache`).
        prepare_attention: (layout) -> what `attention` of the same table wants; once per step, shared by all layers.
        attention: (q `[T, Hq, D]`, key_cache, value_cache, prepared, scale) -> `[T, Hq, D]`. Causal: the row at
            position p sees the positions 0..p of its own sequence (with a window: the last so many of them), all
            read from the cache (`write_kv` first).
        copy_blocks: (kv_caches of all layers, pairs of (source, destination) block ids) -> None; copies whole blocks
            in every layer, as if one pair after the other.
        swap_blocks: (sources, destinations: the caches of all layers in two pools, pairs of (source, destination)
            block ids) -> None; copies whole blocks between the pools. No destination stands in two pairs.
        pack_weight_: (weight `[out, in]`) -> None; rearranges in place what `linear` and `embedding` of this table are
            given, once, when it is complete. Shape and dtype stay, but rows are no longer rows.
        unpack_weight_: (weight) -> None; undoes it.
    """

    name: str
    embedding: Callable[[Tensor, Tensor], Tensor]
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rope: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    silu_mul: Callable[[Tensor], Tensor]
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    prepare_attention: Callable[[AttentionLayout], Any]
    attention: Callable[[Tensor, Tensor, Tensor, Any, float], Tensor]
    copy_blocks: Callable[[list[KVCache], list[tuple[int, int]]], None]
    swap_blocks: Callable[[list[KVCache], list[KVCache], list[tuple[int, int]]], None]
    pack_weight_: Callable[[Tensor], None] = _keep_weight
    unpack_weight_: Callable[[Tensor], None] = _keep_weight


REFERENCE_OPS = Ops(
    name="reference",
    embedding=reference.embedding,
    linear=reference.linear,
    rms_norm=reference.rms_norm,
    add_rms_norm=reference.add_rms_norm,
    rope=reference.rope,
    silu_mul=reference.silu_mul,
    write_kv=reference.write_kv,
    prepare_attention=reference.prepare_attention,
    attention=reference.attention,
    copy_blocks=reference.copy_blocks,
    swap_blocks=reference.swap_blocks,
)
"""The golden version: what the words above say, in the plainest torch, as slow as it may be."""

TORCH_CPU_OPS = Ops(
    name="torch_cpu",
    embedding=torch_cpu.embedding,
    linear=torch_cpu.linear,
    rms_norm=torch_cpu.rms_norm,
    add_rms_norm=torch_cpu.add_rms_norm,
    rope=torch_cpu.rope,
    silu_mul=torch_cpu.silu_mul,
    write_kv=torch_cpu.write_kv,
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
    rms_norm=native.rms_norm,
    add_rms_norm=native.add_rms_norm,
    rope=native.rope,
    silu_mul=native.silu_mul,
    write_kv=native.write_kv,
    prepare_attention=native.prepare_attention,
    attention=native.attention,
    copy_blocks=native.copy_blocks,
    swap_blocks=native.swap_blocks,
    pack_weight_=native.pack_weight_,
    unpack_weight_=native.unpack_weight_,
)
"""Own kernels on a CPU; usable where `ops.cpu.library.absence()` is None."""


def select_ops(device: str) -> Ops:
    """The fastest version for a device ('cpu'); it uses as many threads as torch does at this moment.

    Raises:
        UnsupportedError: there is no version for the device. ConfigError: see `ops.cpu.library.load_library`.
    """
    if torch.device(device).type != "cpu":
        raise UnsupportedError(f"there are no ops for device {device!r} yet; use device='cpu'")
    library = load_library()
    if library is None:
        logger.info("torch's kernels serve: native CPU ops are %s", absence())
        return TORCH_CPU_OPS
    native.set_num_threads(torch.get_num_threads())
    logger.info("native CPU ops: %s, %d threads", library.isa, torch.get_num_threads())
    return NATIVE_CPU_OPS
