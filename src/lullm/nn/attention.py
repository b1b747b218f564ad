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
from lullm.types.layer_kind import EncoderOnlyAttention


@dataclass(frozen=True, slots=True)
class AttentionStyle:
    """The differences between families.

    Args:
        scale: factor on the products of queries and keys.
        soft_cap: see `CausalScores`.
        head_norm_eps: of an RMSNorm on every query and key head before the rotation; None: no such norm.
        has_norm_weights: norms on heads scale by learned weights.
        norms_behind_rope: norms on heads come after the rotation.
        row_norm_eps: of an RMSNorm over all query heads of a row, and one over all its key heads, before the rotation.
        qkv_bias, o_bias: the projections have a bias.
        has_sinks: every query head has a learned sink (see `CausalScores`).
        query_factors: `[max_len, 1]`, the factor on queries at each position; None: 1.
        output_gate: the result is multiplied by gates. Their rows come before the queries' in the projection.
        has_value_norm: values are normed, by `head_norm_eps` and without a weight.
        values_are_keys: values are the keys before their norm. The projection's rows are read twice.
    """

    scale: float
    soft_cap: float | None = None
    head_norm_eps: float | None = None
    has_norm_weights: bool = True
    norms_behind_rope: bool = False
    row_norm_eps: float | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    has_sinks: bool = False
    query_factors: Tensor | None = None
    output_gate: OutputGate | None = None
    has_value_norm: bool = False
    values_are_keys: bool = False


class Attention(nn.Module):
    """Project, (norm), rotate, write the new keys and values to the cache, attend over the cache, project back.

    Modules of norms on heads only hold the weights. An fp8 cache has `kv_scales` (`add_kv_scales`).

    Args:
        layer: the number of the layer in the model.
        group: the number of its KV cache group.
    """

    ones: Tensor
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
        self.scores = CausalScores(style.scale, style.soft_cap)
        self.sinks = meta_parameter((num_heads,), torch.float32) if style.has_sinks else None
        self.q_norm = self.k_norm = None
        if style.head_norm_eps is not None and style.has_norm_weights:
            self.q_norm = RMSNorm(self.head_dim, style.head_norm_eps, dtype)
            self.k_norm = RMSNorm(self.head_dim, style.head_norm_eps, dtype)
        if style.has_value_norm or not style.has_norm_weights:
            self.register_buffer("ones", torch.ones(self.head_dim, dtype=dtype, device="cpu"), persistent=False)
        self.register_buffer("query_factors", style.query_factors, persistent=False)
        if style.row_norm_eps is not None:
            self.q_norm = RMSNorm(q_size, style.row_norm_eps, dtype)
            self.k_norm = RMSNorm(kv_size, style.row_norm_eps, dtype)
        self.share, self.num_all_kv_heads = config.share, heads.num_heads
        if config.share is not None:
            self.num_all_kv_heads = config.share.whole.kv_heads(layer).num_heads
        self.kv_scales: KVScales | None = None

    def forward(
        self,
        x: Tensor,  # [T, H]
        cos_sin_cache: Tensor,  # [max_len, D]
        context: StepContext,
    ) -> Tensor:  # [T, H]
        ops, attention, cache = context.ops, context.attention[self.group], context.caches[self.layer]
        qkv = self.project(x, ops)
        if self.style.output_gate is not None:
            gate, qkv = qkv[:, : self.gate_size], qkv[:, self.gate_size :]
        head_norm = None
        if not self.style.has_norm_weights and self.style.head_norm_eps is not None:
            head_norm = HeadNorm(self.ones, self.ones, self.style.head_norm_eps)
        if self.q_norm is not None and self.k_norm is not None:
            if self.style.row_norm_eps is None:
                head_norm = HeadNorm(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
            else:
                kv_size = self.num_kv_heads * self.head_dim
                q, k, _ = qkv.split((qkv.shape[1] - 2 * kv_size, kv_size, kv_size), dim=-1)
                num_shares = 1 if self.share is None else self.share.axis.size
                norm_rows_(((q, self.q_norm), (k, self.k_norm)), num_shares, ops)
        qkv = qkv.unflatten(-1, (-1, self.head_dim))  # [T, Hq + 2 * Hkv, D]
        if self.style.has_value_norm and self.style.head_norm_eps is not None:
            ops.rms_norm_(qkv[:, qkv.shape[1] - self.num_kv_heads :], self.ones, self.style.head_norm_eps)
        write = self._turn(qkv, head_norm, cos_sin_cache, context)
        if context.calibrates and self.kv_scales is not None:
            self.kv_scales.calibrate(qkv, attention.slot_mapping, write)
        q = write(cache, attention.slot_mapping)
        if self.query_factors is not None:
            ops.multiply_(q.view(len(q), -1), ops.embedding(context.positions, self.query_factors), None)
        scores = self.scores if self.sinks is None else replace(self.scores, sinks=self.sinks)
        out = ops.attention(q, cache, attention, scores)  # [T, Hq, D]
        for rows in context.mutual[self.group] if context.mutual else ():
            rows.attend(out, q, cache, ops, scores)
        out = out.flatten(1)
        if self.style.output_gate is not None:
            ops.multiply_(out, gate, self.style.output_gate.gating)
        return self.o_proj(out, ops)

    def project(self, x: Tensor, ops: Ops) -> Tensor:
        """The gates (if any), queries, keys and values of `x [T, H]`."""
        projected: Tensor = getattr(self, self.projection)(x, ops)
        return projected

    def _turn(
        self, qkv: Tensor, head_norm: HeadNorm | None, cos_sin_cache: Tensor, context: StepContext
    ) -> Callable[[LayerCache, Tensor], Tensor]:
        """A function that writes the keys and values of `qkv [T, Hq + 2 * Hkv, D]` into a cache's slots and returns the
        queries.

        The op that rotates and writes has no norms after the rotation; here both are done separately, in place.
        """
        ops = context.ops
        if not self.style.norms_behind_rope:
            return partial(ops.rope_and_cache, qkv, head_norm, context.positions, cos_sin_cache)
        assert self.q_norm is not None and self.k_norm is not None, "of families with norms on heads"
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
        self.scores = CausalScores(style.scale, style.soft_cap)
        self.head_dim = config.kv_heads(layer).head_dim
        q_size = config.num_attention_heads * self.head_dim
        self.q_proj = Linear(config.hidden_size, q_size, style.qkv_bias, dtype)
        self.o_proj = Linear(q_size, config.hidden_size, style.o_bias, dtype)
        assert style.head_norm_eps is not None, "of families with norms on heads"
        self.q_norm = RMSNorm(self.head_dim, style.head_norm_eps, dtype)

    def forward(
        self,
        x: Tensor,  # [T, H]
        cos_sin_cache: Tensor,  # [max_len, D]
        context: StepContext,
    ) -> Tensor:  # [T, H]
        ops, attention, cache = context.ops, context.attention[self.group], context.caches[self.layer]
        q = self.q_proj(x, ops).unflatten(-1, (-1, self.head_dim))  # [T, Hq, D]
        norm = HeadNorm(self.q_norm.weight, self.q_norm.weight, self.q_norm.eps)
        ops.rotate_(q, norm, context.positions, cos_sin_cache)
        out = ops.attention(q, cache, attention, self.scores)
        for rows in context.mutual[self.group] if context.mutual else ():
            rows.attend(out, q, cache, ops, self.scores)
        return self.o_proj(out.flatten(1), ops)


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
        has_more = style.soft_cap is not None or style.has_sinks or style.output_gate is not None
        has_more = has_more or style.row_norm_eps is not None or style.has_value_norm or style.norms_behind_rope
        if has_more or style.query_factors is not None or not style.has_norm_weights or style.values_are_keys:
            raise ModelLoadError(f"{config.architecture} has attention that is implemented for next tokens only")

    def forward(self, x: Tensor, cos_sin_cache: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """See `Attention.forward`. A table `[Hq, L, L]` is a bias on the scores instead (`Ops.mutual_attention`)."""
        ops = context.ops
        bias = cos_sin_cache if cos_sin_cache.ndim == 3 else None
        qkv = self.project(x, ops).unflatten(-1, (-1, self.head_dim))  # [T, Hq + 2 * Hkv, D]
        num_kv, num_heads = self.num_kv_heads, qkv.shape[1] - 2 * self.num_kv_heads
        q, k, v = qkv.split((num_heads, num_kv, num_kv), dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            for heads, norm in ((q, self.q_norm), (k, self.k_norm)):
                of_head = HeadNorm(norm.weight, norm.weight, norm.eps)
                ops.rotate_(heads, of_head, context.positions, cos_sin_cache)
        elif self.turns:
            ops.rotate_(qkv[:, : num_heads + num_kv], None, context.positions, cos_sin_cache)
        out = ops.mutual_attention(q, k, v, context.query_lens, MutualScores(self.style.scale, self.reach, bias))
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
