"""DecoderConfig: the family part of a `config.json`, for the families that share one decoder (`models.decoder`)."""

from dataclasses import dataclass
from typing import Literal

from lullm.config.layer.disentangled import DisentangledConfig
from lullm.config.layer.encoder import EncoderConfig
from lullm.config.layer.experts import ExpertsConfig
from lullm.config.layer.recurrent import RecurrentConfig
from lullm.config.rope import RopeConfig
from lullm.types.arithmetic import Activation, AttentionFeature, Gating, QKNorm


@dataclass(frozen=True, slots=True)
class QueryStretch:
    """Queries at position p are multiplied by `1 + beta * log(1 + floor((p + ahead) / trained_len))`.

    `ahead`: 0 in Ministral 3, 1 in Llama 4.
    """

    beta: float
    trained_len: int
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class OutputGate:
    """Gates on what attention gives, which the projection of the queries holds, too.

    Args:
        is_apart: but not in a checkpoint, which has a matrix for them.
        is_of_heads: a head has one number, not one for each of its elements.
    """

    is_apart: bool = False
    is_of_heads: bool = False
    gating: Gating = "sigmoid"


@dataclass(frozen=True, slots=True)
class ParallelFactors:
    """Falcon-H1's factors on the inputs and results of a layer's parts. They are folded into weights.

    Args:
        space_parts: on the gates, the values, B, C, and the step sizes.
    """

    attention_in: float
    attention_out: float
    space_in: float
    space_out: float
    space_parts: tuple[float, ...]
    mlp_gate: float
    mlp_down: float


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Attention over one latent vector per token (MLA, https://arxiv.org/abs/2405.04434). Sizes in elements.

    Args:
        rank: of the latent vector, which determines keys and values of all heads.
        rope_size: of the part of a key that is rotated, which all heads share.
        plain_size: of the part of a head's query and key that is not rotated.
        value_size: of a head's value.
        query_rank: of the latent vector for queries; None: queries are computed from the hidden state.
        interleaves: a checkpoint's rotated pairs are neighbours.
    """

    rank: int
    rope_size: int
    plain_size: int
    value_size: int
    query_rank: int | None
    interleaves: bool

    @property
    def cached_size(self) -> int:
        """Numbers of a token in the cache."""
        return self.rank + self.rope_size

    @property
    def query_size(self) -> int:
        """Size of a head's query."""
        return self.plain_size + self.rope_size


@dataclass(frozen=True, slots=True)
class LayerInputConfig:
    """A layer's input beside the hidden states: `size` elements of the layer's own embedding of a token.

    `pad_token_id`: the token in place of a picture's rows.
    """

    size: int
    vocab_size: int
    pad_token_id: int = 0


@dataclass(frozen=True, slots=True)
class AltUpConfig:
    """Several residual streams; a layer computes one of them (AltUp, https://arxiv.org/abs/2301.13310).

    Args:
        active: the number of the stream that layers compute.
        scales_active: the addition of a layer's own inputs is scaled by element.
        laurel_rank: of a learned part of the residual stream (LAuReL, https://arxiv.org/abs/2411.07501).
    """

    num_streams: int
    active: int
    scales_active: bool
    laurel_rank: int


@dataclass(frozen=True, slots=True)
class SharedBlocksConfig:
    """Zamba 2's blocks of attention and an MLP, shared by several layers. Each layer has its own small matrices.

    Args:
        num_blocks: number of different blocks.
        rank: of the small matrices. adapts_attention: queries, keys and values have some, too, not only the MLP.
    """

    num_blocks: int
    rank: int
    adapts_attention: bool


@dataclass(frozen=True, slots=True)
class NormedStream:
    """MiniMax's factors on the residual stream (a norm's result) and on the results added to it: of attention,
    lightning attention, or experts. The factors on results are folded into weights.
    """

    full_kept: float
    linear_kept: float
    mlp_kept: float
    full_added: float
    linear_added: float
    mlp_added: float


@dataclass(frozen=True, slots=True)
class EncoderOnlyConfig:
    """A model whose tokens see their whole text, before and behind them.

    Args:
        num_positions: rows of a learned table of positions; 0: there is none. first_position: that of the first token.
        num_segments: rows of a learned table for the texts of a pair; 0: there is none.
        tells_pairs: tokens of the second text have its row 1; if False, all have row 0.
        text_kind: the rows that are pooled for an embedding, where no module says it.
        label_kind: those for a head of labels.
        label_activation: of the layer between them and the labels. has_label_bias: that layer has a bias.
        has_label_norm: a norm comes behind it. has_token_layer: it stands before labels of tokens, too.
        num_buckets: of distances between tokens, each with a learned number per head that is added to scores; 0: there
            are no such numbers.
        num_groups: as many consecutive groups of layers, each of which is one layer that is run again; 0: all differ.
        disentangled: of families whose attention reads distances as it reads tokens.
    """

    num_positions: int = 0
    first_position: int = 0
    num_segments: int = 0
    tells_pairs: bool = False
    text_kind: Literal["last", "cls", "mean"] = "cls"
    label_kind: Literal["last", "cls", "mean"] = "cls"
    label_activation: Literal["tanh", "gelu", "relu"] = "tanh"
    has_label_bias: bool = True
    has_label_norm: bool = False
    has_token_layer: bool = False
    num_buckets: int = 0
    num_groups: int = 0
    disentangled: DisentangledConfig | None = None


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The config of the shared decoder beside the common part of `ModelConfig`.

    Args:
        rms_norm_eps: of all norms.
        ropes: by layer; None: its heads are not rotated. In most families all rotate the same share of a head.
        activation: of the gates in the MLP.
        attention_scale: factor on the products of queries and keys.
        attention_bias: projections of queries, keys and values have a bias.
        output_bias: the projection behind attention has one; None: as those in front.
        query_stretch: see there.
        query_heads: their number by layer, if it differs; empty: the model's in all layers.
        has_sinks: every query head has a learned sink (see `Ops.attention`).
        intermediate_sizes: by layer, if they differ, 0: it has no MLP; empty: `intermediate_size` in all.
        matrix_layers: by layer, whether a plain matrix stands in place of attention; empty: in none.
        has_value_norms: values are normed, without a weight.
        layers_of_equal_values: by layer, whether values are the keys before their norm; empty: in none.
        layer_inputs: of families with such inputs.
        alibi_slopes: by query head of the whole model: slope times the key's position is added to a score; empty:
            nothing is.
        altup: of families with several residual streams.
        gate_cutoffs: by layer: only the part of an MLP's gate above this number of standard deviations over its row's
            mean counts; None: all of it. Empty: None in all layers.
        output_gate: the result of attention is multiplied by gates.
        qk_norm: the norm of queries and keys, of families that may have one.
        has_drafts: a checkpoint may hold layers that draft tokens, which are not loaded.
        has_post_norms: of families that may have norms behind attention and MLP, too.
        norms_head: every row of the head is read with the length 1.
        has_logit_bias: of families that may add a learned bias to the logits.
        mlp_bias: projections of the MLP have a bias.
        embedding_scale: factor on the rows of the embedding, rounded to the model's dtype.
        scales_shown: also on rows in place of them, which other families take scaled.
        residual_scale: factor on what attention and MLP add to the residual stream.
        logit_scale: factor on the logits.
        has_parallel_mlp: MLP and attention read the same hidden states; of families that may have it so.
        has_mlp_norm: then each of both has a norm of its own; of families that may have one for both.
        norms_have_mean: norms take the mean off; of families that may do so.
        norms_first: norms stand in front of attention and MLP; of families that may have them behind the sums.
        embedding_size: of a token's embedding, where it is not `hidden_size`; of families that project it.
        latent: keys and values follow from one latent vector per token; None: heads have keys and values.
        experts: in place of the MLP, in some layers or all.
        recurrent: in place of attention, or beside it, in layers that keep a recurrent state.
        kinds_per_layer: entries of `layer_kinds` that a layer has.
        factors: of a family with attention and state spaces side by side.
        normed_stream: of a family whose norms begin the residual stream anew.
        shared_blocks: of a family whose attention and MLPs are the same in several layers.
        encoder: whose rows every layer attends to, too, by heads of the layer's own; None: there is none.
        encoder_only: of families whose tokens see those behind them, too.
        attention_soft_cap, final_soft_cap: `cap * tanh(x / cap)` of scores, and of logits; None: as they are.
    """

    intermediate_size: int
    rms_norm_eps: float
    ropes: tuple[RopeConfig | None, ...]
    attention_scale: float
    activation: Activation = "silu"
    attention_bias: bool = False
    output_bias: bool | None = None
    query_stretch: QueryStretch | None = None
    query_heads: tuple[int, ...] = ()
    has_sinks: bool = False
    intermediate_sizes: tuple[int, ...] = ()
    matrix_layers: tuple[bool, ...] = ()
    has_value_norms: bool = False
    layers_of_equal_values: tuple[bool, ...] = ()
    layer_inputs: LayerInputConfig | None = None
    alibi_slopes: tuple[float, ...] = ()
    altup: AltUpConfig | None = None
    gate_cutoffs: tuple[float | None, ...] = ()
    output_gate: OutputGate | None = None
    qk_norm: QKNorm | None = None
    has_drafts: bool = False
    has_post_norms: bool = False
    has_logit_bias: bool = False
    norms_head: bool = False
    mlp_bias: bool = False
    embedding_scale: float = 1.0
    scales_shown: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    has_parallel_mlp: bool = False
    has_mlp_norm: bool = False
    norms_have_mean: bool = False
    norms_first: bool = True
    embedding_size: int | None = None
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None
    recurrent: RecurrentConfig | None = None
    kinds_per_layer: int = 1
    factors: ParallelFactors | None = None
    normed_stream: NormedStream | None = None
    shared_blocks: SharedBlocksConfig | None = None
    encoder: EncoderConfig | None = None
    encoder_only: EncoderOnlyConfig | None = None

    @property
    def widest_row(self) -> int:
        """Elements of the widest row between two layers' results, for memory that is planned ahead."""
        of_experts = 0 if self.experts is None else self.experts.num_used * 2 * self.experts.intermediate_size
        of_recurrent = 0 if self.recurrent is None else self.recurrent.projected_size
        of_inputs = 0 if self.layer_inputs is None else self.layer_inputs.size * len(self.ropes)
        of_mlps = [2 * size for size in self.intermediate_sizes]
        return max(2 * self.intermediate_size, *of_mlps, of_experts, of_inputs, of_recurrent)

    def inner_size(self, layer: int) -> int:
        """Inner size of a layer's MLP."""
        return self.intermediate_sizes[layer] if self.intermediate_sizes else self.intermediate_size

    @property
    def has_output_bias(self) -> bool:
        """The projection behind attention has a bias."""
        return self.attention_bias if self.output_bias is None else self.output_bias

    def rotary_dim(self, head_dim: int) -> int:
        """Elements of a head that are rotated, from its start, in layers that rotate."""
        return next((rope.rotary_dim(head_dim) for rope in self.ropes if rope is not None), head_dim)

    @property
    def attention_features(self) -> frozenset[AttentionFeature]:
        """Features of attention beside plain scores that the model needs."""
        wanted: dict[AttentionFeature, bool] = {
            "soft_cap": self.attention_soft_cap is not None,
            "sinks": self.has_sinks,
            "latents": self.latent is not None,
        }
        return frozenset(feature for feature, is_wanted in wanted.items() if is_wanted)
