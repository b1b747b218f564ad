"""Layer kinds: what one layer of a model keeps between steps. A model states one kind per layer.

Kinds are plain data, equal by value: layers of equal kinds keep the same tokens, so they can share block tables
(`kv.cache_group`).
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Keys and values of all tokens so far."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Keys and values of the last `window` tokens: a token sees so many, itself included."""

    window: int

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"a sliding window has at least 1 token, not {self.window}")


@dataclass(frozen=True, slots=True)
class EncoderAttention:
    """Keys and values of an encoder's output: written once per sequence, then only read."""


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """Float32 tensors of fixed `shapes` per sequence, however long it is; each step replaces them."""

    shapes: tuple[tuple[int, ...], ...]

    @property
    def num_elements(self) -> int:
        """Of all tensors together."""
        return sum(math.prod(shape) for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class Nothing:
    """No memory between steps: a layer without attention, or one that reads what another layer keeps."""


LayerKind = FullAttention | SlidingWindow | EncoderAttention | RecurrentState | Nothing
