"""The ops over the native library: checks of layout, memory for results, one call each (see `recording`).

Bfloat16 and float32 are native; other dtypes, and head sizes that are no multiple of 16 in attention, go to the torch
version. Weights of `embedding` and `linear` have been through `pack_weight_`: which ones it changes is a function of
shape and dtype alone, so nothing needs to be remembered.
"""

import ctypes
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from lullm.ops import grouped_attention, torch_cpu
from lullm.ops.attention_layout import AttentionLayout, KVCache
from lullm.ops.cpu.recording import call, new_result
from lullm.ops.draw_table import DrawTable

_DTYPES = {torch.float32: 0, torch.bfloat16: 1}


def set_num_threads(num_threads: int) -> None:
    """How many threads the native ops use, the caller's included; at first as many as the process may run on."""
    call("lullm_set_num_threads", num_threads)


def pack_weight_(weight: Tensor) -> None:
    """Rearrange a weight `[out, in]` in place into the order in which `linear` and `embedding` read it. Blocking.

    To be called once, when the weight is complete. It keeps shape and dtype, but rows are no longer rows. A temporary
    copy of a few rows per thread is all the memory it takes.
    """
    if weight.dtype in _DTYPES and weight.numel():
        assert weight.is_contiguous(), "packed in place"
        call("lullm_pack_weight", weight.data_ptr(), *weight.shape, _DTYPES[weight.dtype])


def unpack_weight_(weight: Tensor) -> None:
    """Undo `pack_weight_`: for an update of some rows, or for reading the weight."""
    if weight.dtype in _DTYPES and weight.numel():
        assert weight.is_contiguous(), "unpacked in place"
        call("lullm_unpack_weight", weight.data_ptr(), *weight.shape, _DTYPES[weight.dtype])


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    dtype = _DTYPES.get(weight.dtype)
    if dtype is None:
        return torch_cpu.embedding(token_ids, weight)
    token_ids = token_ids.contiguous()
    vocab_size, hidden_size = weight.shape
    num_tokens = token_ids.shape[0]
    out = new_result((num_tokens, hidden_size), weight.dtype)
    if not call(
        "lullm_embedding",
        token_ids.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        num_tokens,
        vocab_size,
        hidden_size,
        dtype,
    ):
        raise IndexError(f"a token id is outside the vocabulary of {vocab_size}")
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    dtype = _DTYPES.get(weight.dtype)
    if dtype is None:
        return torch_cpu.linear(x, weight, bias)
    if x.stride(1) != 1:
        x = x.contiguous()
    num_rows, num_outputs = x.shape[0], weight.shape[0]
    y = new_result((num_rows, num_outputs), x.dtype)
    call(
        "lullm_linear",
        x.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        x.stride(0),
        num_outputs,
        num_rows,
        weight.shape[1],
        num_outputs,
        dtype,
    )
    return y


def logits(x: Tensor, weight: Tensor) -> Tensor:
    dtype = _DTYPES.get(weight.dtype)
    if dtype is None:
        return torch_cpu.logits(x, weight)
    if x.stride(1) != 1:
        x = x.contiguous()
    num_rows, vocab_size = x.shape[0], weight.shape[0]
    y = new_result((num_rows, vocab_size), torch.float32)
    call(
        "lullm_logits",
        x.data_ptr(),
        weight.data_ptr(),
        y.data_ptr(),
        x.stride(0),
        num_rows,
        weight.shape[1],
        vocab_size,
        dtype,
    )
    return y


def linear_silu_mul(x: Tensor, gate_up_weight: Tensor, bias: Tensor | None) -> Tensor:
    dtype = _DTYPES.get(gate_up_weight.dtype)
    if dtype is None:
        return torch_cpu.linear_silu_mul(x, gate_up_weight, bias)
    if x.stride(1) != 1:
        x = x.contiguous()
    num_rows, num_outputs = x.shape[0], gate_up_weight.shape[0]
    y = new_result((num_rows, num_outputs // 2), x.dtype)
    is_done = call(
        "lullm_linear_silu_mul",
        x.data_ptr(),
        gate_up_weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        y.data_ptr(),
        x.stride(0),
        num_rows,
        gate_up_weight.shape[1],
        num_outputs,
        dtype,
    )
    return y if is_done else silu_mul(linear(x, gate_up_weight, bias))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    dtype = _DTYPES.get(x.dtype)
    if dtype is None:
        return torch_cpu.rms_norm(x, weight, eps)
    size = x.shape[-1]
    if x.dim() == 3 and _has_whole_heads(x):
        num_heads, stride = x.shape[1], x.stride(0)
    elif x.dim() == 2 and x.stride(1) == 1:
        num_heads, stride = 1, x.stride(0)
    else:
        x = x.contiguous()
        num_heads, stride = 1, size
    num_rows = x.numel() // (num_heads * size)
    y = new_result(x.shape, x.dtype)
    call(
        "lullm_rms_norm",
        x.data_ptr(),
        None,
        weight.data_ptr(),
        y.data_ptr(),
        None,
        stride,
        num_rows,
        num_heads,
        size,
        eps,
        dtype,
    )
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dtype = _DTYPES.get(x.dtype)
    if dtype is None or not (x.is_contiguous() and residual.is_contiguous()):
        return torch_cpu.add_rms_norm(x, residual, weight, eps)
    num_rows, size = x.shape
    y = new_result(x.shape, x.dtype)
    total = residual.data_ptr()
    call(
        "lullm_rms_norm",
        x.data_ptr(),
        total,
        weight.data_ptr(),
        y.data_ptr(),
        total,
        size,
        num_rows,
        1,
        size,
        eps,
        dtype,
    )
    return y, residual


def rope_and_cache(
    qkv: Tensor,
    q_norm_weight: Tensor | None,
    k_norm_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    dtype = _DTYPES.get(qkv.dtype)
    num_tokens, num_heads, head_size = qkv.shape
    if dtype is None or key_cache.dtype != qkv.dtype or not _has_whole_heads(qkv):
        return torch_cpu.rope_and_cache(
            qkv,
            q_norm_weight,
            k_norm_weight,
            eps,
            positions,
            cos_sin_cache,
            key_cache,
            value_cache,
            slot_mapping,
            key_scales,
            value_scales,
        )
    num_kv_heads = key_cache.shape[2]
    num_q_heads = num_heads - 2 * num_kv_heads
    q = new_result((num_tokens, num_q_heads, head_size), qkv.dtype)
    call(
        "lullm_rope_and_cache",
        qkv.data_ptr(),
        None if q_norm_weight is None else q_norm_weight.data_ptr(),
        None if k_norm_weight is None else k_norm_weight.data_ptr(),
        positions.data_ptr(),
        cos_sin_cache.data_ptr(),
        q.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        slot_mapping.data_ptr(),
        qkv.stride(0),
        num_tokens,
        num_q_heads,
        num_kv_heads,
        head_size,
        eps,
        dtype,
    )
    return q


def _has_whole_heads(x: Tensor) -> bool:
    """Is each row `[heads, D]` of `x [T, heads, D]` in one piece?"""
    return x.stride(2) == 1 and x.stride(1) == x.shape[2]


def silu_mul(gate_up: Tensor) -> Tensor:
    dtype = _DTYPES.get(gate_up.dtype)
    if dtype is None or gate_up.stride(1) != 1:
        return torch_cpu.silu_mul(gate_up)
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    y = new_result((num_rows, size), gate_up.dtype)
    call("lullm_silu_mul", gate_up.data_ptr(), y.data_ptr(), gate_up.stride(0), num_rows, size, dtype)
    return y


def to_float32(x: Tensor) -> Tensor:
    if x.dtype != torch.bfloat16 or not x.is_contiguous():
        return x.float()
    y = new_result(x.shape, torch.float32)
    call("lullm_widen", x.data_ptr(), y.data_ptr(), x.numel())
    return y


@dataclass
class NativeLayout:
    """The prepared step; `query_starts [S + 1]` and `context_lens [S]` are int64.

    The rows of a span are those from its start to the start of the next. `pointers` are the addresses of the block
    tables, the context lengths and the query starts.
    """

    layout: AttentionLayout
    slot_mapping: Tensor
    query_starts: Tensor
    context_lens: Tensor
    pointers: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        tables = self.layout.block_tables
        self.pointers = (tables.data_ptr(), self.context_lens.data_ptr(), self.query_starts.data_ptr())

    @cached_property
    def grouped(self) -> grouped_attention.GroupedLayout:
        """For what the native version does not do."""
        return grouped_attention.prepare_attention(self.layout)


def prepare_attention(layout: AttentionLayout) -> NativeLayout:
    starts = [0]
    for query_len in layout.query_lens:
        starts.append(starts[-1] + query_len)
    assert layout.block_tables.stride(1) == 1 or layout.block_tables.shape[1] <= 1, "rows of a table are in one piece"
    return NativeLayout(
        layout,
        layout.slot_mapping,
        torch.tensor(starts, dtype=torch.int64),
        torch.tensor(layout.context_lens, dtype=torch.int64),
    )


def attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    prepared: NativeLayout,
    scale: float,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    dtype = _DTYPES.get(q.dtype)
    num_tokens, num_q_heads, head_size = q.shape
    if dtype is None or head_size % 16 or key_cache.dtype != q.dtype or not _has_whole_heads(q):
        return grouped_attention.attention(q, key_cache, value_cache, prepared.grouped, scale, key_scales, value_scales)
    out = new_result((num_tokens, num_q_heads, head_size), q.dtype)
    call(
        "lullm_attention",
        q.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        *prepared.pointers,
        out.data_ptr(),
        q.stride(0),
        prepared.layout.block_tables.stride(0),
        key_cache.shape[1],
        num_q_heads,
        key_cache.shape[2],
        head_size,
        prepared.layout.num_spans,
        prepared.layout.window or 0,
        scale,
        dtype,
    )
    return out


def draw_tokens(logits: Tensor, table: DrawTable, writes_logits: bool = False) -> Tensor:
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    num_rows, vocab_size = logits.shape
    tokens = new_result((num_rows,), torch.int64)
    call(
        "lullm_draw_tokens",
        logits.data_ptr(),
        table.temperatures.data_ptr(),
        table.top_k.data_ptr(),
        table.top_p.data_ptr(),
        table.min_p_floors.data_ptr(),
        table.uniforms.data_ptr(),
        tokens.data_ptr(),
        num_rows,
        logits.stride(0),
        vocab_size,
        writes_logits,
    )
    return tokens


def copy_blocks(kv_caches: list[KVCache], pairs: list[tuple[int, int]]) -> None:
    swap_blocks(kv_caches, kv_caches, pairs)


def swap_blocks(sources: list[KVCache], destinations: list[KVCache], pairs: list[tuple[int, int]]) -> None:
    if not pairs or not sources:
        return
    from_caches, to_caches = ([cache for layer in caches for cache in layer] for caches in (sources, destinations))
    pointers = [
        (ctypes.c_void_p * len(caches))(*[cache.data_ptr() for cache in caches]) for caches in (from_caches, to_caches)
    ]
    flat_pairs = torch.tensor(pairs, dtype=torch.int64)
    block_bytes = from_caches[0].stride(0) * from_caches[0].dtype.itemsize
    call("lullm_copy_blocks", *pointers, len(from_caches), flat_pairs.data_ptr(), len(pairs), block_bytes)
