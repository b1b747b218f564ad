"""The decoder that the families share: embedding, layers of attention and MLP, final norm, head.

A family differs in its `DecoderStyle`. Parameters have the names of a Llama checkpoint, except fused ones, and are on
the meta device until `weights.materialize` gives them memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.config.pooling.pooler import TokenScore
from lullm.kv.cache_group import LayerPlace
from lullm.kv.layout import layer_places
from lullm.models.protocol import Model
from lullm.nn.alibi import AlibiAttention
from lullm.nn.attention import Attention, AttentionStyle, EncoderOnlySelfAttention, QueryAttention, stretch_factors
from lullm.nn.context import ShownRows, StepContext
from lullm.nn.embedding import Embedding, LogitBias, new_embedding, new_head, pooling_head
from lullm.nn.mlp import MLP, GatedMLP
from lullm.nn.norm import Norm, RMSNorm, added_and_normed, normed
from lullm.nn.rotary import Rotary
from lullm.ops.attention_layout import CausalScores
from lullm.ops.table import Ops
from lullm.types.arithmetic import QKNorm
from lullm.types.layer_kind import EncoderOnlyAttention, RecurrentState, SharedAttention
from lullm.weights.rows.cut import Cut
from lullm.weights.rule import WeightRules


def gated_mlp(config: ModelConfig, layer: int, dtype: torch.dtype) -> GatedMLP:
    """The MLP of most families."""
    family = config.family
    return GatedMLP(config.hidden_size, family.inner_size(layer), family.activation, family.mlp_bias, dtype)


def plain_mlp(config: ModelConfig, layer: int, dtype: torch.dtype) -> MLP:
    """The MLP of families without gates."""
    family = config.family
    return MLP(config.hidden_size, family.inner_size(layer), family.activation, family.mlp_bias, dtype)


def new_norm(config: ModelConfig, dtype: torch.dtype) -> RMSNorm:
    """A norm over a row of hidden states."""
    return RMSNorm(config.hidden_size, config.family.rms_norm_eps, dtype)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The arguments of a layer's constructor. `group`: its KV cache group."""

    config: ModelConfig
    style: "DecoderStyle"
    number: int
    group: int
    dtype: torch.dtype

    @property
    def is_recurrent(self) -> bool:
        """Whether the layer keeps a state, not keys."""
        return isinstance(self.config.layer_kinds[self.number], RecurrentState)

    @property
    def place(self) -> LayerPlace:
        """The place of the layer's blocks."""
        return place_of(self.config, self.number)


def attention_alone(spec: LayerSpec) -> dict[str, nn.Module]:
    """The mixers of a layer in most families."""
    return {"self_attn": new_attention(spec)}


@dataclass(frozen=True, slots=True)
class DecoderStyle:
    """The differences of a family beside the numbers of its `DecoderConfig`.

    Args:
        rules: how a checkpoint's names become parameters.
        qk_norm: the norm of queries and keys; None: there is none.
        query_factors: by position, of models whose queries grow with it (`nn.attention.stretch_factors`).
        has_logit_bias: a learned bias is added to the logits.
        norms_embedding: a norm comes after the embedding, too.
        make_norm: (config, dtype) -> a norm over a row of hidden states.
        make_mlp: (config, number of the layer, dtype) -> the part of a layer after its mixers; None: no such part.
        make_mixers: of a layer's tokens, by name: attention, a recurrent mixer, none, or several, whose results are
            added. All are called with (hidden states `[T, H]`, the layer's rotary table, context).
        make_layer: None: `DecoderLayer`.
        make_decoder: (config, style, dtype, max_model_len) -> the part before the head; None: `Decoder`.
        make_model: the same -> the model; None: `CausalLM`.
        cuts: see `Model`.
    """

    rules: WeightRules
    qk_norm: QKNorm | None = None
    query_factors: Tensor | None = None
    has_logit_bias: bool = False
    norms_embedding: bool = False
    make_norm: Callable[[ModelConfig, torch.dtype], Norm] = new_norm
    make_mlp: Callable[[ModelConfig, int, torch.dtype], nn.Module | None] = gated_mlp
    make_mixers: Callable[[LayerSpec], dict[str, nn.Module]] = attention_alone
    make_layer: "Callable[[LayerSpec], DecoderLayer] | None" = None
    make_decoder: "Callable[[ModelConfig, DecoderStyle, torch.dtype, int], Decoder] | None" = None
    make_model: "Callable[[ModelConfig, DecoderStyle, torch.dtype, int], CausalLM] | None" = None
    cuts: Mapping[str, Cut] = field(default_factory=dict)

    def build(self, config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> "CausalLM":
        """See `registry.Style`."""
        return (self.make_model or CausalLM)(config, self, dtype, max_model_len)


class DecoderLayer(nn.Module):
    """One layer, norms first. The residual stream is passed beside the hidden states, so addition and norm fuse."""

    def __init__(self, spec: LayerSpec):
        super().__init__()
        self.mixers = tuple(spec.style.make_mixers(spec).items())
        if self.mixers:
            self.input_layernorm = spec.style.make_norm(spec.config, spec.dtype)
        for name, mixer in self.mixers:
            self.add_module(name, mixer)
        self.mlp = spec.style.make_mlp(spec.config, spec.number, spec.dtype)
        if self.mlp is not None:
            self.post_attention_layernorm = spec.style.make_norm(spec.config, spec.dtype)

    def forward(
        self,
        hidden: Tensor,  # [T, H]: the previous layer's contribution
        residual: Tensor | None,  # [T, H]: everything before that; None in the first layer
        context: StepContext,
    ) -> tuple[Tensor, Tensor | None]:
        """This layer's contribution, and everything before that; or (all of it, None)."""
        if self.mixers:
            hidden, residual = self.norm_input(hidden, residual, context.ops)
            hidden = self.mix(hidden, context)
        if self.mlp is None:
            return hidden, residual
        hidden, residual = added_and_normed(self.post_attention_layernorm, hidden, residual, context.ops)
        return self.feed(hidden, context.ops), residual

    def feed(self, hidden: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        """The result of the layer's MLP, summed over the workers that share it."""
        assert self.mlp is not None, "asked for by layers that have one"
        fed: Tensor = self.mlp(hidden, ops)
        ops.all_reduce_(fed)
        return fed

    def mix(self, hidden: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """The sum of the results of the layer's mixers, over all workers that share them."""
        mixed = self.mix_here(hidden, context)
        context.ops.all_reduce_(mixed)
        return mixed

    def mix_here(self, hidden: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """The same for this worker's parts only."""
        first, *others = (mixer(hidden, context) for _, mixer in self.mixers)
        for other in others:
            context.ops.add_(first, other)
        return first

    def norm_input(self, hidden: Tensor, residual: Tensor | None, ops: Ops) -> tuple[Tensor, Tensor]:
        """(the input of attention, the residual stream)."""
        return added_and_normed(self.input_layernorm, hidden, residual, ops)


def new_attention(spec: LayerSpec) -> Attention | QueryAttention | AlibiAttention:
    """The attention of a layer."""
    family = spec.config.family
    equal_values = family.layers_of_equal_values
    attention_style = AttentionStyle(
        scores=CausalScores(family.attention_scale, family.attention_soft_cap),
        qk_norm=spec.style.qk_norm,
        norm_eps=family.rms_norm_eps,
        has_value_norm=family.has_value_norms,
        qkv_bias=family.attention_bias,
        o_bias=family.has_output_bias,
        has_sinks=family.has_sinks,
        query_factors=spec.style.query_factors,
        output_gate=family.output_gate,
        values_are_keys=bool(equal_values) and equal_values[spec.number],
    )
    if family.alibi_slopes:
        return AlibiAttention(spec.config, attention_style, spec.number, spec.group, spec.dtype)
    if isinstance(spec.config.layer_kinds[spec.number], EncoderOnlyAttention):
        return EncoderOnlySelfAttention(spec.config, attention_style, spec.number, spec.group, spec.dtype)
    shares = isinstance(spec.config.layer_kinds[spec.number], SharedAttention)
    return (QueryAttention if shares else Attention)(spec.config, attention_style, spec.number, spec.group, spec.dtype)


def place_of(config: ModelConfig, index: int) -> LayerPlace:
    """The place of the blocks of entry `index` of `layer_kinds`."""
    place = layer_places(config).places[index]
    assert place is not None, "an entry that keeps something"
    return place


class Decoder(nn.Module):
    """From token ids to the head's input.

    On a stage of a pipeline: from the residual stream of the stage before (except the first stage) to that for the next
    stage (except the last).
    """

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__()
        family, stage = config.family, config.stage
        self.stage = stage
        if stage.is_first or (stage.is_last and config.ties_head):
            self.embed_tokens = new_embedding(config, config.hidden_size, dtype)
        self.embed_norm = style.make_norm(config, dtype) if style.norms_embedding and stage.is_first else None
        self.embedding_scale = torch.tensor(family.embedding_scale, dtype=dtype, device="cpu").item()
        self.scales_shown = family.scales_shown
        make_layer = style.make_layer or DecoderLayer
        places = layer_places(config).places[:: family.kinds_per_layer]
        groups = [0 if place is None else place.group for place in places]
        self.layers = nn.ModuleList()
        for layer in config.layers:  # under its number in the model, on every stage
            self.layers.add_module(str(layer), make_layer(LayerSpec(config, style, layer, groups[layer], dtype)))
        if stage.is_last:
            self.norm = style.make_norm(config, dtype)
        of_layers = [(family.ropes[layer], config.rotated_size(layer)) for layer in config.layers]
        ropes = list(dict.fromkeys(of_layers))
        self.rotaries = nn.ModuleList(
            Rotary(replace(config, head_dim=size), rope, max_model_len) for rope, size in ropes
        )
        rotaries = [ropes.index(rope) for rope in of_layers]
        first, num_each = config.own_kinds.start, family.kinds_per_layer
        self.rotary_of_kind = {entry: rotaries[(entry - first) // num_each] for entry in config.own_kinds}

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        return self.run(self.embed(token_ids, context), context)

    def run(self, hidden: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        """Run all layers, and the last norm after the last of them."""
        hidden, residual = self.run_layers(hidden, context)
        if not self.stage.is_last:
            return summed(hidden, residual, context.ops)
        return added_and_normed(self.norm, hidden, residual, context.ops)[0]

    def run_layers(self, hidden: Tensor, context: StepContext) -> tuple[Tensor, Tensor | None]:
        """The last layer's contribution, and everything before it."""
        residual: Tensor | None = None
        context = self.with_rotary(context)
        for number, layer in enumerate(self.layers):
            hidden, residual = layer(hidden, residual, context)
            for rows in context.shown:
                rows.add(hidden, number)
        return hidden, residual

    def with_rotary(self, context: StepContext) -> StepContext:
        """The step, with the rotary tables of the layers."""
        tables = [rotary(context.planes) for rotary in self.rotaries]
        return context.with_rotary({entry: tables[index] for entry, index in self.rotary_of_kind.items()})

    def embed(self, token_ids: Tensor, context: StepContext) -> Tensor:  # [T] -> [T, H]
        """The input of the first layer here."""
        if context.stream is not None:
            return context.stream
        hidden = self.add_places(self.embed_text(token_ids, context.ops, context.shown), context)
        return normed(self.embed_norm, hidden, context.ops)

    def embed_text(self, token_ids: Tensor, ops: Ops, shown: Sequence[ShownRows] = ()) -> Tensor:
        """The embedding of the ids, and of what is shown in their places."""
        hidden: Tensor = self.embed_tokens(token_ids, ops)
        for rows in shown if self.scales_shown else ():
            rows.put(hidden)
        if self.embedding_scale != 1.0:
            ops.scale_(hidden, self.embedding_scale)
        for rows in () if self.scales_shown else shown:
            rows.put(hidden)
        return hidden

    def add_places(self, hidden: Tensor, context: StepContext) -> Tensor:
        """Add what families without rotations learn of places; here nothing."""
        return hidden


def summed(hidden: Tensor, residual: Tensor | None, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
    """The whole residual stream, with the bits of the next layer's norm, in half of the bytes."""
    if residual is None:
        return hidden
    ops.add_(residual, hidden)
    return residual


class CausalLM(Model):
    """A decoder with its language-model head, a pooling head in its place, or both."""

    has_stages = reads_shown = True
    has_pooling_heads = True

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style.rules)
        self.cuts = style.cuts
        style = replace(style, query_factors=stretch_factors(config.family.query_stretch, max_model_len, dtype))
        self.model = (style.make_decoder or Decoder)(config, style, dtype, max_model_len)
        if not config.stage.is_last:
            return
        self.lm_head = new_head(config, config.hidden_size, dtype)
        self.logit_bias = LogitBias(config.vocab_size) if style.has_logit_bias and config.has_lm_head else None
        self.score = pooling_head(config, dtype)
        # An encoder computes a text in one step, so that layers behind a mean read it once.
        self.pools_means = self.score is not None and config.family.encoder_only is not None

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """See `Model.forward`."""
        hidden: Tensor = self.model(token_ids, context)
        return hidden

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.compute_logits`."""
        logits = self.lm_head(hidden, self._shared, ops)
        if self.logit_bias is not None:
            self.logit_bias(logits, ops)
        return self._scaled(logits, ops)

    def pool(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `Model.pool`."""
        match None if self.config.pooler is None else self.config.pooler.head:
            case TokenScore(true_token_id, false_token_id):
                wanted = [true_token_id] if false_token_id is None else [true_token_id, false_token_id]
                token_ids = torch.tensor(wanted, device=hidden.device)
                logits = self.lm_head.some_logits(hidden, token_ids, self._shared, ops)
                if self.logit_bias is not None:
                    logits += self.logit_bias.weight[token_ids]
                logits = self._scaled(logits, ops)
                return logits if false_token_id is None else logits[:, :1] - logits[:, 1:]
        return hidden.float() if self.score is None else cast(Tensor, self.score(hidden, ops))

    @property
    def _shared(self) -> Embedding | None:
        """The embedding, if the worker has it."""
        return getattr(self.model, "embed_tokens", None)

    def _scaled(self, logits: Tensor, ops: Ops) -> Tensor:
        family = self.config.family
        if family.logit_scale != 1.0:
            ops.scale_(logits, family.logit_scale)
        if family.final_soft_cap is not None:
            ops.soft_cap_(logits, family.final_soft_cap)
        return logits
