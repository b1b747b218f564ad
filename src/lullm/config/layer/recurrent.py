"""The recurrent layers of hybrids: their facts in `config.json`, and the state of a sequence in each."""

import math
from dataclasses import dataclass
from typing import Literal

from lullm.units import cdiv

FACTOR_COLUMNS = 64
"""Columns of a head's matrix that native code updates at a time (`kStateColumns`)."""


def head_states(num_heads: int, key_dim: int, value_dim: int) -> tuple[tuple[int, ...], ...]:
    """A matrix per head, and the pending factors of its columns, `FACTOR_COLUMNS` at a time."""
    return (num_heads, key_dim, value_dim), (num_heads, cdiv(value_dim, FACTOR_COLUMNS))


CHUNK_TOKENS = 32
"""Tokens that native code computes together with tiles (`kChunkTokens`)."""


def chunk_tokens(
    num_heads: int, key_dim: int, value_dim: int, num_groups: int, floats_per_head: int
) -> tuple[tuple[int, ...], ...]:
    """The writes of a chunk's tokens until the chunk is complete: their keys in bfloat16, and these numbers.

    Empty for sizes that do not fit tiles.
    """
    if key_dim % 32 or value_dim % 16:
        return ()
    return ((CHUNK_TOKENS - 1, num_heads * floats_per_head + num_groups * key_dim // 2),)


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """The recurrent layers of a hybrid: gated delta nets (https://arxiv.org/abs/2412.06464).

    Args:
        num_key_heads, num_value_heads: there are as many query heads as key heads. A key head serves several value
            heads.
        kernel_size: tokens that the convolution before the heads sees, the last one included.
        forgets_by_key: decays are per element of a key, not per head (Kimi Delta Attention).
        most_beta: the largest share of the state's value for a key that a token replaces; 2 changes its sign.
        keeps_chunks: a state has room for the tokens of an unfinished chunk. Tiles need it (`ops.state.chunks`).
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    kernel_size: int
    most_beta: float = 1.0
    forgets_by_key: bool = False
    keeps_chunks: bool = True

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
        """The channels of the convolution: queries, keys and values."""
        return 2 * self.key_size + self.value_size

    @property
    def projected_size(self) -> int:
        """Elements of the widest projection."""
        return self.num_channels + self.value_size

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """A sequence's state: the rows that the convolution sees, a matrix per value head, and a chunk's tokens."""
        sizes = (self.num_value_heads, self.key_head_dim, self.value_head_dim)
        states = (self.kernel_size - 1, self.num_channels), *((sizes,) if self.forgets_by_key else head_states(*sizes))
        if not self.keeps_chunks:
            return states
        # of a head: its changes, and its decay, or in bfloat16 what its decays follow from beside keys of its own
        if self.forgets_by_key:
            return *states, *chunk_tokens(*sizes, self.num_value_heads, self.value_head_dim + self.key_head_dim // 2)
        return *states, *chunk_tokens(*sizes, self.num_key_heads, self.value_head_dim + 1)


@dataclass(frozen=True, slots=True)
class StateSpaceConfig:
    """The recurrent layers of a hybrid: state spaces (Mamba 2, https://arxiv.org/abs/2405.21060).

    Args:
        num_heads, head_dim: of the values that are written into the states and read.
        num_groups: heads of a group share B and C, vectors of `state_size`.
        kernel_size: tokens that the convolution before the heads sees, the last one included.
        convolution_bias, projection_bias, output_bias: these have a bias.
        least_step, most_step: bounds of a token's step size.
        gate: the gates come before or after the norm, or there is no norm.
        keeps_chunks: as of `DeltaNetConfig`.
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
    keeps_chunks: bool = True

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
        """Channels of the convolution: heads, and B and C of the groups."""
        return self.inner_size + 2 * self.group_size

    @property
    def projected_size(self) -> int:
        """Elements of the widest projection."""
        return self.inner_size + self.num_channels + self.num_heads

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """A sequence's state: the rows that the convolution still sees, a matrix per head, and a chunk's tokens."""
        sizes = (self.num_heads, self.state_size, self.head_dim)
        states = (self.kernel_size - 1, self.num_channels), *head_states(*sizes)
        if not self.keeps_chunks:
            return states
        # of a head: values in bfloat16, its decay, the size of a step
        return *states, *chunk_tokens(*sizes, self.num_groups, self.head_dim // 2 + 2)


@dataclass(frozen=True, slots=True)
class SelectiveConfig:
    """The recurrent layers of Mamba 1 (https://arxiv.org/abs/2312.00752): a state of `state_size` numbers per channel.

    Args:
        num_channels: of the convolution and of the states.
        kernel_size: tokens that the convolution sees, the last one included.
        step_rank: rank of the matrix that computes the step sizes of all channels.
        convolution_bias, projection_bias: these have a bias.
        norm_eps: of norms on the inputs of the step sizes, and on B and C; None: no norms.
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
        """A sequence's state: the rows that the convolution still sees, and the states of all channels."""
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
        """A sequence's state: the rows that the convolution still sees."""
        return ((self.kernel_size - 1, self.num_channels),)


@dataclass(frozen=True, slots=True)
class GatedUnitConfig:
    """The recurrent layers of Griffin (RG-LRU, https://arxiv.org/abs/2402.19427): a number per channel.

    Args:
        num_heads, head_dim: of the channels; a head has its own matrices, which compute its gates.
        kernel_size: tokens that the convolution sees, the last one included.
    """

    num_heads: int
    head_dim: int
    kernel_size: int

    @property
    def num_channels(self) -> int:
        """The channels of the convolution and of the states."""
        return self.num_heads * self.head_dim

    @property
    def projected_size(self) -> int:
        """Elements of the widest projection."""
        return 2 * self.num_channels

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """A sequence's state: the rows that the convolution still sees, and the states of all channels."""
        return (self.kernel_size - 1, self.num_channels), (self.num_channels,)


RecurrentConfig = DeltaNetConfig | StateSpaceConfig | SelectiveConfig | ShortConvolutionConfig | GatedUnitConfig
