"""DecoderConfig: the family part of a `config.json`, for the families that share one decoder (`models.decoder`)."""

import math
from dataclasses import dataclass
from typing import Literal

from lullm.config.experts import ExpertsConfig
from lullm.config.rope import RopeConfig
from lullm.types.arithmetic import Activation, AttentionFeature
from lullm.units import cdiv


@dataclass(frozen=True, slots=True)
class QueryStretch:
    """Queries at position p are multiplied by `1 + beta * log(1 + floor(p / trained_len))` (Llama 4, Ministral 3)."""

    beta: float
    trained_len: int


FACTOR_COLUMNS = 64
"""Of a head's matrix, that native code moves on at a time (`kStateColumns`)."""


def head_states(num_heads: int, key_dim: int, value_dim: int) -> tuple[tuple[int, ...], ...]:
    """A matrix per head; and what native code has still to multiply its columns by, so many at a time."""
    return (num_heads, key_dim, value_dim), (num_heads, cdiv(value_dim, FACTOR_COLUMNS))


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """The recurrent layers of a hybrid: gated delta nets (https://arxiv.org/abs/2412.06464).

    Args:
        num_key_heads, num_value_heads: a key head, which queries have as many of, serves several value heads.
        kernel_size: tokens that the convolution before the heads sees, the last one included.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel_size: int

    @property
    def key_size(self) -> int:
        """Elements of all key heads."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Elements of all value heads."""
        return self.num_value_heads * self.value_head_dim

    @property
    def num_channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def projected_size(self) -> int:
        """Elements of the widest projection."""
        return self.num_channels + self.value_size

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What a sequence keeps: the rows that the convolution still sees, and a matrix per value head."""
        heads = head_states(self.num_value_heads, self.key_head_dim, self.value_head_dim)
        return (self.kernel_size - 1, self.num_channels), *heads


@dataclass(frozen=True, slots=True)
class StateSpaceConfig:
    """The recurrent layers of a hybrid: state spaces (Mamba 2, https://arxiv.org/abs/2405.21060).

    Args:
        num_heads, head_dim: of what is written into the states, and read.
        num_groups: heads of a group share what they write by and read by, vectors of `state_size`.
        kernel_size: tokens that the convolution before the heads sees, the last one included.
        convolution_bias, projection_bias, output_bias: these have a bias.
        least_step, most_step: bounds of a token's step size.
        gate: whether the gates come before the norm or behind it, or there is no norm.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    kernel_size: int
    convolution_bias: bool = True
    projection_bias: bool = False
    output_bias: bool = False
    least_step: float = 0.0
    most_step: float = math.inf
    gate: Literal["before norm", "behind norm", "no norm"] = "before norm"

    @property
    def inner_size(self) -> int:
        """Elements of all heads."""
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Elements of all groups."""
        return self.num_groups * self.state_size

    @property
    def num_channels(self) -> int:
        """Of the convolution: heads, and what groups write by and read by."""
        return self.inner_size + 2 * self.group_size

    @property
    def projected_size(self) -> int:
        """Elements of the widest projection."""
        return self.inner_size + self.num_channels + self.num_heads

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What a sequence keeps: the rows that the convolution still sees, and a matrix per head."""
        heads = head_states(self.num_heads, self.state_size, self.head_dim)
        return (self.kernel_size - 1, self.num_channels), *heads


@dataclass(frozen=True, slots=True)
class SelectiveConfig:
    """The recurrent layers of Mamba 1 (https://arxiv.org/abs/2312.00752): a state of `state_size` numbers per channel.

    Args:
        num_channels: of the convolution and of the states.
        kernel_size: tokens that the convolution sees, the last one included.
        step_rank: of the matrix that the step sizes of all channels follow from.
        convolution_bias, projection_bias: these have a bias.
        norm_eps: of norms on what step sizes follow from, and on what channels write by and read by; None: no norms.
        has_norm_weights: these norms scale by learned vectors.
    """

    num_channels: int
    state_size: int
    kernel_size: int
    step_rank: int
    convolution_bias: bool = True
    projection_bias: bool = False
    norm_eps: float | None = None
    has_norm_weights: bool = False

    @property
    def projected_size(self) -> int:
        """Elements of the widest projection."""
        return 2 * self.num_channels

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What a sequence keeps: the rows that the convolution still sees, and the states of all channels."""
        return (self.kernel_size - 1, self.num_channels), (self.state_size, self.num_channels)


@dataclass(frozen=True, slots=True)
class ShortConvolutionConfig:
    """The recurrent layers of LFM2: a gated convolution over `kernel_size` tokens, the last one included."""

    num_channels: int
    kernel_size: int
    has_bias: bool

    @property
    def projected_size(self) -> int:
        """Elements of the widest projection."""
        return 3 * self.num_channels

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What a sequence keeps: the rows that the convolution still sees."""
        return ((self.kernel_size - 1, self.num_channels),)


RecurrentConfig = DeltaNetConfig | StateSpaceConfig | SelectiveConfig | ShortConvolutionConfig


@dataclass(frozen=True, slots=True)
class ParallelFactors:
    """Falcon-H1's factors on what goes into the parts of a layer, and what comes out. They are folded into weights.

    Args:
        space_parts: on the gates, the values, what groups write by, read by, and the step sizes.
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
        rank: of the latent vector, from which keys and values of all heads follow.
        rope_size: of the part of a key that is rotated, which all heads share.
        plain_size: of the part of a head's query and key that is not rotated.
        value_size: of a head's value.
        query_rank: of the latent vector that queries follow from; None: they follow from the hidden state.
        interleaves: a checkpoint's pairs that turn are neighbours.
    """

    rank: int
    rope_size: int
    plain_size: int
    value_size: int
    query_rank: int | None
    interleaves: bool

    @property
    def cached_size(self) -> int:
        """What the cache keeps of a token."""
        return self.rank + self.rope_size

    @property
    def query_size(self) -> int:
        """Of a head's query."""
        return self.plain_size + self.rope_size


@dataclass(frozen=True, slots=True)
class LayerInputConfig:
    """What every layer reads of its token beside the hidden states: `size` elements of an embedding of its own."""

    size: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class AltUpConfig:
    """Several residual streams, of which a layer computes one (AltUp, https://arxiv.org/abs/2301.13310).

    Args:
        active: the number of the stream that layers compute.
        scales_active: what a layer's own inputs are added by is scaled element by element.
        laurel_rank: of a learned part of the residual stream (LAuReL, https://arxiv.org/abs/2411.07501).
    """

    num_streams: int
    active: int
    scales_active: bool
    laurel_rank: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What the shared decoder needs beside the common part of `ModelConfig`.

    Args:
        rms_norm_eps: of all norms.
        ropes: by layer; None: its heads are not rotated. All rotate the same share of a head.
        activation: of the gates in the MLP.
        attention_scale: factor on the products of queries and keys.
        attention_bias: projections of queries, keys and values have a bias, and in most families that of the output.
        output_bias: the projection behind attention has a bias, in families that say so by a key of its own.
        query_stretch: see there.
        has_sinks: every query head has a learned sink (see `Ops.attention`).
        intermediate_sizes: by layer, where they differ; empty: `intermediate_size` in all.
        has_value_norms: values are normed, without a weight.
        layers_of_equal_values: by layer, whether values are what keys are before their norm; empty: in none.
        layer_inputs: of families whose layers have such.
        alibi_slopes: by query head of the whole model: a score is added a slope times the position of its key; empty:
            it is not.
        altup: of families with several residual streams.
        gate_cutoffs: by layer, how many standard deviations above the mean of its row a gate of the MLP must lie to
            count, what is above alone; None: all count. Empty: in all layers.
        has_output_gate: what attention gives is multiplied by gates, which the projection of the queries holds too.
        has_head_norms: of families that may have norms on every query and key head.
        mlp_bias: projections of the MLP have a bias.
        embedding_scale: factor on the rows of the embedding, rounded to the model's dtype.
        residual_scale: factor on what attention and MLP add to the residual stream.
        logit_scale: factor on the logits.
        has_parallel_mlp: MLP and attention read the same hidden states; of families that may have it so.
        has_mlp_norm: then each of both has a norm of its own; of families that may have one for both.
        norms_first: norms stand in front of attention and MLP; of families that may have them behind the sums.
        embedding_size: of a token's embedding, where it is not `hidden_size`; of families that project it.
        latent: keys and values follow from one latent vector per token; None: heads have keys and values.
        experts: in place of the MLP, in some layers or all.
        recurrent: in place of attention, or beside it, in layers that keep a recurrent state.
        kinds_per_layer: entries of `layer_kinds` that a layer has.
        factors: of a family with attention and state spaces side by side.
        attention_soft_cap, final_soft_cap: `cap * tanh(x / cap)` of scores, and of logits; None: as they are.
    """

    intermediate_size: int
    rms_norm_eps: float
    ropes: tuple[RopeConfig | None, ...]
    attention_scale: float
    activation: Activation = "silu"
    attention_bias: bool = False
    output_bias: bool = False
    query_stretch: QueryStretch | None = None
    has_sinks: bool = False
    intermediate_sizes: tuple[int, ...] = ()
    has_value_norms: bool = False
    layers_of_equal_values: tuple[bool, ...] = ()
    layer_inputs: LayerInputConfig | None = None
    alibi_slopes: tuple[float, ...] = ()
    altup: AltUpConfig | None = None
    gate_cutoffs: tuple[float | None, ...] = ()
    has_output_gate: bool = False
    has_head_norms: bool = False
    mlp_bias: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    has_parallel_mlp: bool = False
    has_mlp_norm: bool = False
    norms_first: bool = True
    embedding_size: int | None = None
    experts: ExpertsConfig | None = None
    latent: LatentConfig | None = None
    recurrent: RecurrentConfig | None = None
    kinds_per_layer: int = 1
    factors: ParallelFactors | None = None

    @property
    def widest_row(self) -> int:
        """Elements of the widest row between two layers' results, for memory that is planned ahead."""
        of_experts = 0 if self.experts is None else self.experts.num_used * 2 * self.experts.intermediate_size
        of_recurrent = 0 if self.recurrent is None else self.recurrent.projected_size
        of_inputs = 0 if self.layer_inputs is None else self.layer_inputs.size * len(self.ropes)
        of_mlps = [2 * size for size in self.intermediate_sizes]
        return max(2 * self.intermediate_size, *of_mlps, of_experts, of_inputs, of_recurrent)

    def inner_size(self, layer: int) -> int:
        """Of the MLP of a layer."""
        return self.intermediate_sizes[layer] if self.intermediate_sizes else self.intermediate_size

    def rotary_dim(self, head_dim: int) -> int:
        """Elements of a head that are rotated, from its start, in layers that rotate."""
        return next((rope.rotary_dim(head_dim) for rope in self.ropes if rope is not None), head_dim)

    @property
    def attention_features(self) -> frozenset[AttentionFeature]:
        """What attention must be able to do beside plain scores."""
        wanted: dict[AttentionFeature, bool] = {
            "soft_cap": self.attention_soft_cap is not None,
            "sinks": self.has_sinks,
            "latents": self.latent is not None,
        }
        return frozenset(feature for feature, is_wanted in wanted.items() if is_wanted)
