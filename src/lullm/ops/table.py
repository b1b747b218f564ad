"""Ops: the table of functions that do a model's arithmetic. A model calls the table and never knows which version.

Sizes: T tokens (rows) of this step, H hidden size, Hq query heads, Hkv key/value heads (Hq is a multiple of it),
D head size, V vocabulary. Activations have the model's dtype; functions run on the device of their arguments, without
state, under `torch.inference_mode()`. No function takes more than six arguments. The versions are in `selection`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from lullm.arena.checksum import NewDigest, Xxh3Digest
from lullm.collective.collective import Alone
from lullm.ops import activation, head_products, in_place
from lullm.ops.attention_layout import Attention, MutualAttention
from lullm.ops.cache.block_pairs import BlockPairs
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.draw_table import DrawTable
from lullm.ops.experts import routing
from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertWeights
from lullm.ops.lora import masked
from lullm.ops.lora.weights import LoraWeights
from lullm.ops.quantized import expansion
from lullm.ops.quantized.grid import GridLayout, GridRows, store_groups_
from lullm.ops.quantized.integer_rows import IntegerRows, store_rows_
from lullm.ops.quantized.narrow import NarrowLayout, NarrowRows, store_narrow_
from lullm.ops.quantized.weight import Layout, QuantizedLayout, quantize_rows_
from lullm.ops.state import mixing, recurrence
from lullm.ops.state.layout import LayerState
from lullm.ops.state.weights import DecayWeights, UnitWeights
from lullm.types.arithmetic import Activation, AttentionFeature, Gating

_Maybe = Tensor | None
_Parts = Sequence[tuple[Tensor, Tensor]]
_Scan = Callable[[Tensor, Tensor, Tensor, DecayWeights, LayerState], Tensor]
_Experts = Callable[[Tensor, Routes, ExpertWeights, _Maybe, _Maybe], Tensor]


ATTENTION_FEATURES: frozenset[AttentionFeature] = frozenset(get_args(AttentionFeature))


@dataclass(frozen=True, slots=True)
class Ops:
    """The functions. The text after each gives its arguments, in their order, and its result."""

    name: str
    """The version's name, for logs and tests."""

    embedding: Callable[[Tensor, Tensor], Tensor]
    """token_ids `[T]` int64, weight `[V, H]` -> `[T, H]`."""

    linear: Callable[[Tensor, Tensor, _Maybe], Tensor]
    """x `[T, in]`, weight `[out, in]`, bias `[out]` or None -> `[T, out]`."""

    logits: Callable[[Tensor, Tensor], Tensor]
    """x `[T, H]`, weight `[V, H]` -> `[T, V]` float32. Versions may round to x's dtype before."""

    gated_linear: Callable[[Tensor, Tensor, _Maybe, Activation], Tensor]
    """x `[T, in]`, gate_up_weight `[2 * I, in]`: gates first, bias `[2 * I]` or None, activation -> `[T, I]`.

    `activation(gate) * up` of the two products (https://arxiv.org/abs/2002.05202).
    """

    activate: Callable[[Tensor, Activation], Tensor]
    """x, activation -> like x. By element, in float32."""

    layer_norm: Callable[[Tensor, Tensor, _Maybe, float], Tensor]
    """x `[T, N]`, weight `[N]`, bias `[N]` or None, eps -> like x (https://arxiv.org/abs/1607.06450).

    Computed in float32 and rounded once.
    """

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """x `[..., N]`, weight `[N]`, eps -> like x (https://arxiv.org/abs/1910.07467).

    The mean square is computed in float32. The quotient is rounded to x's dtype before the weight is applied.
    """

    rms_norm_: Callable[[Tensor, Tensor, float], None]
    """x `[T, N]` or `[T, heads, N]`, a part of longer rows or not, weight `[N]`, eps -> None. `rms_norm` in place."""

    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    """x `[T, H]`, residual `[T, H]`, weight `[H]`, eps -> (rms_norm of the sum, the sum).

    The contents of both arguments are undefined afterwards.
    """

    experts: _Experts
    """x `[T, H]`, routes, weights, shared `[T, H]` or None, shared_gate `[T, 1]` or None -> `[T, H]`.

    The sum of a row's experts, each times its share, and of the shared result, times the sigmoid of its gate if there
    is one. It is added in float32, by ascending expert and the shared one last, and rounded once. Experts that no row
    chose are not read. Those of other workers (`ExpertWeights.first`) are left out.
    """

    rope_and_cache: Callable[[Tensor, HeadNorm | None, Tensor, Tensor, LayerCache, Tensor], Tensor]
    """qkv `[T, Hq + 2 * Hkv, D]`, head_norm, positions `[T]` int64, cos_sin_cache `[max_len, D]` float32 (D/2 cosines,
    then D/2 sines), cache, slot_mapping `[T]` int64 -> q `[T, Hq, D]`.

    Norms query and key heads, if there is a norm. Rotates both in pairs (i, i + D/2)
    (https://arxiv.org/abs/2104.09864). Writes keys and values into the cache in place, quantized for an int8
    (`int8_cache`) or fp8 (`float8_cache`) cache. A row with slot -1 is not written.
    """

    write_cache: Callable[[Tensor, LayerCache, Tensor], None]
    """kv `[T, 2 * Hkv, D]`: keys, then values; cache, slot_mapping `[T]` int64 -> None.

    Writes both without norm and rotation; otherwise as `rope_and_cache`.
    """

    prepare_attention: Callable[[DeviceLayout], Any]
    """layout -> the `prepared` of the same table's `attention`; once per step and KV cache group."""

    attention: Attention
    """q `[T, Hq, D]`, cache, prepared, scores -> `[T, Hq, D]`.

    Causal: the row at position p sees the positions 0..p of its own sequence (with a window: those within it). All are
    read from the cache, so `rope_and_cache` comes first. The scores are those of `CausalScores`.
    """

    mutual_attention: MutualAttention
    """Attention of rows that see each other, without a cache."""

    copy_blocks: Callable[[list[LayerCache], BlockPairs], None]
    """caches of all layers, pairs of (source, destination) block ids -> None.

    Copies whole blocks in every layer, as if one pair after the other.
    """

    swap_blocks: Callable[[list[LayerCache], list[LayerCache], BlockPairs], None]
    """sources, destinations: the caches of all layers in two pools; pairs of (source, destination) block ids -> None.

    Copies whole blocks between the pools. No destination occurs in two pairs.
    """

    pack_weight_: Callable[[Tensor], None] = in_place.keep_
    """weight `[out, in]` -> None. Rearranges a weight in place for `linear` and `embedding` of this table.

    Called once, when the weight is complete. Shape and dtype stay, but the order of elements is the version's own.
    """

    unpack_weight_: Callable[[Tensor], None] = in_place.keep_
    """weight -> None. Undoes `pack_weight_`."""

    route: routing.Route = routing.route
    """products `[T, E]`, correction `[E]` float32 or None, config, factors `[E]` float32 or None (by default) -> the
    experts of every row, and their shares, each times the factor of its expert.

    Scores are float32. Of equal scores the first is chosen.
    """

    add_: Callable[[Tensor, Tensor], None] = in_place.add_
    """total, x of its shape -> None. Adds x to the total in place; the sum is rounded once."""

    xielu_: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None] = in_place.xielu_
    """x, alpha_p `[1]`, alpha_n `[1]`, beta, eps, all of its type -> None. See `nn.mlp.Xielu`; rounded once."""

    join: Callable[[Tensor, Tensor], Tensor] = in_place.join
    """x `[T, N]`, y `[T, M]`, parts of longer rows or not -> `[T, N + M]`."""

    all_reduce_: Callable[[Tensor], None] = Alone().all_reduce_
    """x -> None. The sum over the workers that share a layer, in place (`Collective.all_reduce_`)."""

    all_gather: Callable[[Tensor], Tensor] = Alone().all_gather
    """x `[N, C]` -> `[N, workers * C]`: the columns of all workers, in rank order (`Collective.all_gather`)."""

    scale_: Callable[[Tensor, float], None] = in_place.scale_
    """x, factor -> None. In place; the product is computed in float32 and rounded once."""

    multiply_heads: Callable[[Tensor, Tensor, int], Tensor] = head_products.multiply_heads
    """x `[T, H, N]`, weight `[H, out, in]`, num_kept -> `[T, H, out + num_kept]`.

    The first `in` elements of every head times the matrix of the head, then the next `num_kept` elements unchanged. The
    weight may be a transposed view.
    """

    attend_latents: head_products.AttendLatents | None = None
    """q `[T, Hq, plain_size + rope_size]`, matrices, cache, prepared, scores without sinks -> `[T, Hq, value_size]`:
    attention over latent vectors (`nn.latent_attention`). None: `absorbed_over` the table's own functions."""

    norm_shares_: Callable[[_Parts, int, float, Callable[[Tensor], None]], None] = in_place.norm_shares_
    """parts `[T, N]` of rows that workers share, with weights `[N]`; num_shares, eps, `all_reduce_` -> None."""

    scale_by_: Callable[[Tensor, Tensor], None] = in_place.scale_by_
    """x, factor `[1]` of its type -> None. As `scale_`, by a number in memory."""

    rotate_: Callable[[Tensor, HeadNorm | None, Tensor, Tensor], None] = in_place.rotate_
    """x `[T, heads, D]`, parts of longer heads or not, norm, positions `[T]`, cos_sin_cache `[max_len, D]` -> None.

    Norms and rotates as `rope_and_cache` does, in place.
    """

    soft_cap_: Callable[[Tensor, float], None] = in_place.soft_cap_
    """x, cap -> None. `cap * tanh(x / cap)` in place (https://arxiv.org/abs/2408.00118)."""

    quantize_rows_: Callable[[Tensor, QuantizedLayout, int, Tensor], None] = quantize_rows_
    """weight, its layout, first row, rows `[n, in]` -> None. See `quantized.weight.quantize_rows_`."""

    store_rows_: Callable[[Tensor, QuantizedLayout, int, IntegerRows], None] = store_rows_
    """weight, its layout, first row, rows -> None. See `quantized.integer_rows.store_rows_`."""

    store_groups_: Callable[[Tensor, GridLayout, int, GridRows], None] = store_groups_
    """weight, its layout, first row, rows -> None. See `quantized.grid.store_groups_`."""

    store_narrow_: Callable[[Tensor, NarrowLayout, int, NarrowRows], None] = store_narrow_
    """weight, its layout, first row, rows -> None. See `quantized.narrow.store_narrow_`."""

    quantized_embedding: Callable[[Tensor, Tensor, Layout, torch.dtype], Tensor] = expansion.quantized_embedding
    """token_ids `[T]` int64, a quantized weight, its layout (`quantized.weight`), dtype -> `[T, H]` of that dtype."""

    quantized_linear: Callable[[Tensor, Tensor, Layout, _Maybe], Tensor] = expansion.quantized_linear
    """x `[T, in]`, weight, its layout, bias `[out]` or None -> `[T, out]`.

    Versions may round x to 16-bit integers times a scale per row.
    """

    quantized_logits: Callable[[Tensor, Tensor, Layout], Tensor] = expansion.quantized_logits
    """As `logits`, of a quantized weight and its layout."""

    quantized_gated_linear: Callable[[Tensor, Tensor, Layout, _Maybe, Activation], Tensor] = (
        expansion.quantized_gated_linear
    )
    """x, weight, its layout, bias, activation: as `gated_linear`, of a quantized weight."""

    multiply_: Callable[[Tensor, Tensor, Gating | None], None] = in_place.multiply_
    """y `[T, N]`, x `[T, M]`, a part of longer rows or not, gating -> None. `y * gating(x)` in place.

    The gating's result is rounded to y's dtype; None: x itself. An element of x multiplies N / M elements of y.
    """

    gated_rms_norm: Callable[[Tensor, Tensor, Tensor, float, bool], Tensor] = mixing.gated_rms_norm
    """x `[T, G, N]`, gate `[T, G * N]`, weight `[N]` or `[G * N]`, eps, gates_first -> `[T, G * N]`.

    RMSNorm of the last dimension; x is multiplied by silu of the gate before (`gates_first`) or after it. In float32;
    the quotient is rounded before the weight is applied.
    """

    causal_convolution: Callable[[Tensor, Tensor, _Maybe, bool, LayerState], Tensor] = mixing.causal_convolution_over(
        recurrence.convolve
    )
    """x `[T, C]`, a part of longer rows or not, weight `[C, K]`, bias `[C]` or None, activates, state -> like x.

    The weighted sum over a row and the K - 1 rows of its sequence before it, by channel; then silu, if `activates`.
    Tensor 0 of the state, `[K - 1, C]`, holds the rows before the step, and is updated for the next step. In float32,
    rounded once.
    """

    gated_delta_rule: _Scan = mixing.gated_delta_rule_over(recurrence.scan)
    """qk `[T, 2 * Hk, Dk]`: queries, then keys; v `[T, Hv, Dv]`, sizes `[T, 2 * Hv]`: products b, then a; weights,
    state -> like v. a and `dt_bias` may have Dk numbers a head: then each element of a key has its own decay.

    Gated Delta Networks, https://arxiv.org/abs/2412.06464 (`ops.state.recurrence`). Queries and keys are scaled to
    length 1, then queries divided by the root of Dk; a key head serves Hv / Hk value heads. beta is `most_beta` times
    the sigmoid of b, the decay's logarithm `-exp(a_log) * softplus(a + dt_bias)`. Tensor 1 of the state,
    `[Hv, Dk, Dv]`, is updated in place. In float32, rounded once.
    """

    state_space: _Scan = mixing.state_space_over(recurrence.scan)
    """x `[T, H, P]`, bc `[T, 2 * G, N]`: B, then C; dt `[T, H]`, weights, state -> like x.

    Mamba 2, https://arxiv.org/abs/2405.21060 (`ops.state.recurrence`: keys are B, queries C, values x times its step
    size). A group of B and C serves H / G heads. The step size is softplus of `dt + dt_bias` within its bounds, the
    decay's logarithm `-exp(a_log)` times it. `skip * x` is added. Tensor 1 of the state, `[H, N, P]`, is updated in
    place. In float32, rounded once.
    """

    selective_scan: _Scan = mixing.selective_scan_over(recurrence.select)
    """x `[T, I]`, bc `[T, 2 * N]`: B, then C; dt `[T, I]`, all parts of longer rows or not, weights, state -> like x.

    Mamba 1 (`ops.state.recurrence.select`). The step size of a channel is softplus of `dt + dt_bias`. `skip * x` is
    added. Tensor 1 of the state, `[N, I]`, is updated in place. In float32, rounded once.
    """

    rg_lru: Callable[[Tensor, Tensor, Tensor, UnitWeights, LayerState], Tensor] = mixing.rg_lru_over(recurrence.unite)
    """x `[T, I]`, inputs `[T, I]`, decays `[T, I]`, all parts of longer rows or not, weights, state -> like x.

    Griffin's RG-LRU (`ops.state.recurrence.unite`). The gates are sigmoids of inputs and of decays, each with its bias.
    x times the first gate is written. The logarithm of a channel's decay is -8 times the second gate times softplus of
    its rate. Tensor 1 of the state, `[I]`, is updated in place. In float32, rounded once.
    """

    forbid_: Callable[[Tensor, Tensor, Tensor], None] = in_place.forbid_
    """logits `[N, V]`, rows `[R]` int64 and allowed `[R, W]` int32, both on the host; 32 * W >= V. In these rows, sets
    tokens without a bit to -inf, in place: bit b of word w is for the token 32 * w + b. Does not synchronise."""

    draw_tokens: Callable[[Tensor, DrawTable, bool], Tensor] | None = None
    """logits `[N, V]` float32, draw table, whether to leave the logits of the draw in place -> `[N]` int64.

    NO_TOKEN for a row without a token; see `DrawTable`. Does not synchronise. None: the sampler draws by itself.
    """

    draw_allowed: Callable[[Tensor, Tensor, Tensor, DrawTable], Tensor] | None = None
    """logits `[N, V]` float32, rows `[R]` int64, allowed `[R, W]` int32, draw table of R rows -> `[R]` int64.

    The result of `forbid_`, then `draw_tokens` of these rows; the logits stay. None: no back end of this device has it.
    """

    compile_attention: Attention | None = None
    """As `attention`, by each kernel that it may choose for such a cache. None: nothing in the table is compiled."""

    compile_experts: _Experts | None = None
    """The same for `experts`. None: the warm-up's own steps compile all kernels."""

    compiling_ahead: Callable[[], AbstractContextManager[None]] = nullcontext
    """Inside its `with`, functions of the calling thread compile their kernels on several threads at a time and run
    none. Their results are undefined, and must not be used as indices. At the end all are compiled.
    """

    gate: Callable[[Tensor, Activation], Tensor] = activation.gate
    """gate_up `[T, 2 * I]`, gates first, activation -> `[T, I]`: `activation(gate) * up`."""

    add_lora_: Callable[[Tensor, Tensor, LoraWeights], None] = masked.add_lora_
    """y `[T, out]`, x `[T, in]`, adapters -> None. Adds to each row what the adapter in its place gives
    (https://arxiv.org/abs/2106.09685). Rounded once, in torch also in between."""

    new_digest: NewDigest = Xxh3Digest
    """-> a new checksum of bytes in host memory. Versions agree on its guarantees, not on its values."""

    is_recordable: bool = False
    """Whether a graph may record decodes: no function waits for the device, and launches follow from bounds.

    On a CPU: whether it is worth trying (`ops.cpu.recording`).
    """

    has_state_kernels: bool = False
    """Whether the ops of recurrent layers are kernels, whose results do not depend on chunks."""

    is_batch_invariant: Callable[[str, str, int], bool] = lambda *_: False
    """Names of the types of activations and of the KV cache, head size -> whether a row's bits ignore the batch.

    They depend on its own sequence only: not on other rows, on chunks or on threads.
    """

    attention_features: frozenset[AttentionFeature] = ATTENTION_FEATURES
    """Features of `attention` beside plain scores; see `selection.with_features`."""

    index_dtype: torch.dtype = torch.int64
    """The type of the integers in a `DeviceLayout`."""

    semaphores_per_span: int = 0
    """Semaphores that attention needs in a `DeviceLayout`."""
