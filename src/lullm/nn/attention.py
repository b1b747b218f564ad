"""Self-attention with grouped key/value heads over the paged cache (https://arxiv.org/abs/2305.13245)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from lullm.config.decoder import OutputGate, QueryStretch
from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.nn.context import StepContext
from lullm.nn.kv_scale import KVScales
from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.nn.norm import RMSNorm, norm_rows_
from lullm.ops.attention_layout import CausalScores, MutualScores
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.table import Ops
from lullm.types.arithmetic import QKNorm
from lullm.types.layer_kind import EncoderOnlyAttention


@dataclass(frozen=True, slots=True)
class AttentionStyle:
    """The differences between families.

    Args:
        scores: without sinks, which are a layer's own.
        qk_norm: the norm of queries and keys; None: there is none. norm_eps: of this one, and of that of values.
        has_value_norm: values are normed head by head, without a weight.
        qkv_bias, o_bias: the projections have a bias.
        has_sinks: every query head has a learned sink (see `CausalScores`).
        query_factors: `[max_len, 1]`, the factor on queries at each position; None: 1.
        output_gate: the result is multiplied by gates. Their rows come before the queries' in the projection.
        values_are_keys: values are the keys before their norm. The projection's rows are read twice.
    """

    scores: CausalScores
    qk_norm: QKNorm | None = None
    norm_eps: float = 0.0
    has_value_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    has_sinks: bool = False
    query_factors: Tensor | None = None
    output_gate: OutputGate | None = None
    values_are_keys: bool = False


class Attention(nn.Module):
    """Project, (norm), rotate, write the new keys and values to the cache, attend over the cache, project back.

    An fp8 cache has `kv_scales` (`add_kv_scales`).

    Args:
        layer: the number of the layer in the model.
        group: the number of its KV cache group.
    """

    query_factors: Tensor | None

    def __init__(self, config: ModelConfig, style: AttentionStyle, layer: int, group: int, dtype: torch.dtype):
        super().__init__()
        self.style = style
        self.layer = layer
        self.group = group
        heads = config.kv_heads(layer)
        self.head_dim, self.num_kv_heads = heads.head_dim, heads.num_heads
        num_heads = config.query_heads(layer)
        q_size, kv_size = num_heads * heads.head_dim, heads.size
        gate = style.output_gate
        self.gate_size = 0 if gate is None else num_heads if gate.is_of_heads else q_size
        shared_sizes = (self.gate_size, q_size, kv_size, kv_size)
        is_apart = gate is not None and gate.is_apart
        part_sizes = shared_sizes if is_apart else (self.gate_size + q_size, kv_size, kv_size)
        projection = FusedLinear(config.hidden_size, part_sizes, style.qkv_bias, dtype, shared_sizes)
        self.projection = "qkk_proj" if style.values_are_keys else "qkv_proj"
        self.add_module(self.projection, projection)
        self.o_proj = Linear(q_size, config.hidden_size, style.o_bias, dtype)
        self.scores = style.scores
        self.sinks = meta_parameter((num_heads,), torch.float32) if style.has_sinks else None
        self.q_norm = self.k_norm = self.v_norm = None
        if style.qk_norm is not None:
            sizes = (q_size, kv_size) if style.qk_norm == "rows" else (self.head_dim, self.head_dim)
            has_weights = style.qk_norm != "bare_heads"
            self.q_norm, self.k_norm = (RMSNorm(size, style.norm_eps, dtype, has_weights) for size in sizes)
        if style.has_value_norm:
            self.v_norm = RMSNorm(self.head_dim, style.norm_eps, dtype, has_weight=False)
        self.register_buffer("query_factors", style.query_factors, persistent=False)
        self.share, self.num_all_kv_heads = config.share, heads.num_heads
        if config.share is not None:
            self.num_all_kv_heads = config.share.whole.kv_heads(layer).num_heads
        self.kv_scales: KVScales | None = None

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, attention, cache = context.ops, context.attention[self.group], context.caches[self.layer]
        qkv = self.project(x, ops)
        if self.style.output_gate is not None:
            gate, qkv = qkv[:, : self.gate_size], qkv[:, self.gate_size :]
        if self.style.qk_norm == "rows":
            self._norm_rows(qkv, ops)
        qkv = qkv.unflatten(-1, (-1, self.head_dim))  # [T, Hq + 2 * Hkv, D]
        if self.v_norm is not None:
            self.v_norm.norm_(qkv[:, qkv.shape[1] - self.num_kv_heads :], ops)
        write = self._turn(qkv, context)
        if context.calibrates and self.kv_scales is not None:
            self.kv_scales.calibrate(qkv, attention.slot_mapping, write)
        q = write(cache, attention.slot_mapping)
        if self.query_factors is not None:
            ops.multiply_(q.view(len(q), -1), ops.embedding(context.positions, self.query_factors), None)
        scores = self.scores if self.sinks is None else replace(self.scores, sinks=self.sinks)
        out = _attended(q, cache, self.group, scores, context).flatten(1)
        if self.style.output_gate is not None:
            ops.multiply_(out, gate, self.style.output_gate.gating)
        return self.o_proj(out, ops)

    def project(self, x: Tensor, ops: Ops) -> Tensor:
        """The gates (if any), queries, keys and values of `x [T, H]`."""
        projected: Tensor = getattr(self, self.projection)(x, ops)
        return projected

    def _norm_rows(self, qkv: Tensor, ops: Ops) -> None:
        """Norm the queries and keys of each row of `qkv [T, (Hq + 2 * Hkv) * D]` in place, over all of its heads."""
        assert self.q_norm is not None and self.k_norm is not None, "of families with norms on rows"
        kv_size = self.num_kv_heads * self.head_dim
        q, k, _ = qkv.split((qkv.shape[1] - 2 * kv_size, kv_size, kv_size), dim=-1)
        num_shares = 1 if self.share is None else self.share.axis.size
        norm_rows_(((q, self.q_norm), (k, self.k_norm)), num_shares, ops)

    def _turn(self, qkv: Tensor, context: StepContext) -> Callable[[LayerCache, Tensor], Tensor]:
        """A function that writes the keys and values of `qkv [T, Hq + 2 * Hkv, D]` into a cache's slots and returns the
        queries; norms on heads are part of it.

        The op that rotates and writes has no norms after the rotation; here both are done separately, in place.
        """
        ops, cos_sin_cache = context.ops, context.rotary[self.layer]
        if self.q_norm is None or self.k_norm is None or self.style.qk_norm == "rows":
            return partial(ops.rope_and_cache, qkv, None, context.positions, cos_sin_cache)
        if self.style.qk_norm != "turned_heads":
            head_norm = HeadNorm(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
            return partial(ops.rope_and_cache, qkv, head_norm, context.positions, cos_sin_cache)
        num_turned = qkv.shape[1] - self.num_kv_heads
        num_heads = num_turned - self.num_kv_heads
        ops.rotate_(qkv[:, :num_turned], None, context.positions, cos_sin_cache)
        self.q_norm.norm_(qkv[:, :num_heads], ops)
        self.k_norm.norm_(qkv[:, num_heads:num_turned], ops)

        def write(cache: LayerCache, slot_mapping: Tensor) -> Tensor:
            ops.write_cache(qkv[:, num_heads:], cache, slot_mapping)
            return qkv[:, :num_heads]

        return write


class QueryAttention(nn.Module):
    """Attention over the keys and values of an earlier layer: it projects queries only.

    Args:
        layer: the number of the layer in the model; its cache is that of the earlier layer.
        group: of the earlier layer.
    """

    def __init__(self, config: ModelConfig, style: AttentionStyle, layer: int, group: int, dtype: torch.dtype):
        super().__init__()
        self.layer, self.group = layer, group
        self.scores = style.scores
        self.head_dim = config.kv_heads(layer).head_dim
        q_size = config.num_attention_heads * self.head_dim
        self.q_proj = Linear(config.hidden_size, q_size, style.qkv_bias, dtype)
        self.o_proj = Linear(q_size, config.hidden_size, style.o_bias, dtype)
        assert style.qk_norm == "heads", "of families with norms on heads"
        self.q_norm = RMSNorm(self.head_dim, style.norm_eps, dtype)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, cache = context.ops, context.caches[self.layer]
        q = self.q_proj(x, ops).unflatten(-1, (-1, self.head_dim))  # [T, Hq, D]
        norm = HeadNorm(self.q_norm.weight, self.q_norm.weight, self.q_norm.eps)
        ops.rotate_(q, norm, context.positions, context.rotary[self.layer])
        return self.o_proj(_attended(q, cache, self.group, self.scores, context).flatten(1), ops)


def _attended(q: Tensor, cache: LayerCache, group: int, scores: CausalScores, context: StepContext) -> Tensor:
    """What queries `q [T, Hq, D]` read from a cache, `[T, Hq, D]`. Rows of one picture may see each other."""
    out = context.ops.attention(q, cache, context.attention[group], scores)
    for rows in context.mutual[group] if context.mutual else ():
        rows.attend(out, q, cache, context.ops, scores)
    return out


class EncoderOnlySelfAttention(Attention):
    """Project, (norm), rotate, attend within each span of the step, project back.

    Args:
        group: none is read.
    """

    def __init__(self, config: ModelConfig, style: AttentionStyle, layer: int, group: int, dtype: torch.dtype):
        super().__init__(config, style, layer, group, dtype)
        kind = config.layer_kinds[layer]
        assert isinstance(kind, EncoderOnlyAttention)
        self.reach = kind.reach
        self.turns = config.family.ropes[layer] is not None
        usual = AttentionStyle(
            style.scores, style.qk_norm, style.norm_eps, qkv_bias=style.qkv_bias, o_bias=style.o_bias
        )
        if style != usual or style.qk_norm not in (None, "heads") or style.scores.soft_cap is not None:
            raise ModelLoadError(f"{config.architecture} has attention that is implemented for next tokens only")

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """See `Attention.forward`. `context.distances` `[Hq, L, L]` is a bias on scores (`Ops.mutual_attention`)."""
        ops, cos_sin_cache = context.ops, context.rotary[self.layer]
        qkv = self.project(x, ops).unflatten(-1, (-1, self.head_dim))  # [T, Hq + 2 * Hkv, D]
        num_kv, num_heads = self.num_kv_heads, qkv.shape[1] - 2 * self.num_kv_heads
        q, k, v = qkv.split((num_heads, num_kv, num_kv), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            for heads, norm in ((q, self.q_norm), (k, self.k_norm)):
                of_head = HeadNorm(norm.weight, norm.weight, norm.eps)
                ops.rotate_(heads, of_head, context.positions, cos_sin_cache)
        elif self.turns:
            ops.rotate_(qkv[:, : num_heads + num_kv], None, context.positions, cos_sin_cache)
        out = ops.mutual_attention(
            q, k, v, context.query_lens, MutualScores(self.scores.scale, self.reach, context.distances)
        )
        return self.o_proj(out.flatten(1), ops)


def stretch_factors(stretch: QueryStretch | None, max_len: int, dtype: torch.dtype) -> Tensor | None:  # [max_len, 1]
    """The factor on queries at each position; None: 1."""
    if stretch is None or max_len + stretch.ahead <= stretch.trained_len:
        return None
    positions = torch.arange(max_len, device="cpu")
    lengths = torch.floor((positions + stretch.ahead) / stretch.trained_len)
    return (1 + stretch.beta * torch.log(1 + lengths)).unsqueeze(1).to(dtype)


def add_kv_scales(model: nn.Module) -> None:
    """Give every attention layer of a model the scales of an fp8 KV cache."""
    for layer in list(model.modules()):
        if isinstance(layer, Attention):
            heads = layer.num_kv_heads, layer.num_all_kv_heads
            layer.kv_scales = KVScales(heads[0], 0 if layer.share is None else layer.share.first(*heads), heads[1])
