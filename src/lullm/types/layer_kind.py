"""Layer kinds: the memory of one layer between steps. A model states one kind per layer.

Kinds are plain data, equal by value: layers of equal kinds keep the same tokens, so they can share block tables
(`kv.cache_group`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVHeads:
    """The heads of a token's keys, and of its values, in one layer: their number and their elements."""

    num_heads: int
    head_dim: int

    @property
    def size(self) -> int:
        """Elements of all heads."""
        return self.num_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Keys and values of all tokens so far.

    Args:
        heads: of a model whose layers differ in them; None: those of the model.
    """

    heads: KVHeads | None = None


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Keys and values of the last `window` tokens; a token sees `window` tokens, itself included. `heads`: see
    `FullAttention`.

    `is_chunked`: windows do not slide but lie side by side: a token sees its own chunk of `window` tokens.
    """

    window: int
    heads: KVHeads | None = None
    is_chunked: bool = False

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"a sliding window has at least 1 token, not {self.window}")


@dataclass(frozen=True, slots=True)
class EncoderOnlyAttention:
    """No memory: a token sees its whole text, before and behind it, which one step computes.

    `reach`: it sees so many tokens to both sides; None: all.
    """

    reach: int | None = None


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Float32 tensors of fixed `shapes` per sequence, independent of its length; each step replaces them."""

    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_elements(self) -> int:
        """Elements of all tensors together."""
        return sum(math.prod(shape) for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class Nothing:
    """A layer without attention: it keeps no memory between steps."""


@dataclass(frozen=True, slots=True)
class SharedAttention:
    """The keys and values of an earlier layer, number `layer`; no memory of its own."""

    layer: int


LayerKind = FullAttention | SlidingWindow | EncoderOnlyAttention | RecurrentState | Nothing | SharedAttention


def has_window(kind: LayerKind) -> bool:
    """Whether a token sees only those near it."""
    return isinstance(kind, SlidingWindow) or (isinstance(kind, EncoderOnlyAttention) and kind.reach is not None)


def first_seen(position: int, window: int | None, is_chunked: bool) -> int:
    """The first position that the token at `position` sees; without a window 0."""
    if window is None:
        return 0
    return position - position % window if is_chunked else max(position - window + 1, 0)


def attended_kind(kinds: Sequence[LayerKind], layer: int) -> LayerKind:
    """The kind of memory that a layer reads: its own, or that of the layer whose keys and values it shares."""
    kind = kinds[layer]
    return kinds[kind.layer] if isinstance(kind, SharedAttention) else kind
