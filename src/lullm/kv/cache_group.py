"""Cache groups: which layers of a model share their block tables, and where each layer's KV stands in a block.

All blocks of a pool are equal: a block has `num_slots` layer-slots, each with the keys and values of `block_size`
tokens for one layer. A group has at most `num_slots` layers of one kind; a block that the group takes holds the KV of
all its layers. So layer -> (group, slot): the slot names the tensors, the group names the block table. A model with
one kind of layers has one group with a slot per layer.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from lullm.errors import UnsupportedError
from lullm.types.layer_kind import FullAttention, LayerKind, Nothing, SlidingWindow
from lullm.types.sequence import Sequence
from lullm.units import cdiv

CacheKind = FullAttention | SlidingWindow
"""The kinds that a block pool can keep."""

MAX_PADDED_RATIO = 1.5
"""Below this ratio between the most and the fewest layers of a kind, a block has a slot for each layer of the most.

12 full and 13 window layers become 2 groups in blocks of 13 slots (1 slot of 26 is empty); blocks of 12 slots would
need 3 groups (11 of 36 are empty). From this ratio on, the fewest layers fill the block and the others are dealt out:
4 full and 22 window layers become 1 + 6 groups of 4 slots (2 of 28 are empty); 22 slots would leave 18 of 44 empty,
and those in the full group, which grows with the sequence.
"""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers of one kind that share a block table; `layers[i]` stands in slot i of every block of the group."""

    kind: CacheKind
    layers: tuple[int, ...]

    @property
    def window(self) -> int | None:
        """Tokens that a token sees, itself included; None: all before it."""
        return self.kind.window if isinstance(self.kind, SlidingWindow) else None

    def num_blocks_behind(self, num_computed_tokens: int, block_size: int) -> int:
        """Leading blocks of a sequence that no token sees any more once so many are computed."""
        window = self.window
        # The next token sees `window` tokens, itself included, and those behind it see no earlier ones.
        return 0 if window is None else max(num_computed_tokens - window + 1, 0) // block_size

    def num_held_blocks(self, num_blocks: int, block_size: int) -> int:
        """The most of its first `num_blocks` blocks that a sequence holds at a time when it grows token by token."""
        window = self.window
        return num_blocks if window is None else min(num_blocks, cdiv(window - 1, block_size) + 1)

    def num_admitted_tokens(self, seq: Sequence) -> int:
        """Tokens that get their slots when a sequence is admitted: all, but with a window those that are cached."""
        return len(seq) if self.window is None else seq.num_computed_tokens


ONE_GROUP = (CacheGroup(FullAttention(), (0,)),)
"""The groups of a model whose layers all have full attention, as far as the bookkeeping of blocks goes."""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a layer's KV stands: the block tables of `group`, the tensors of `slot`."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of a model, and the place of each layer (None: it keeps nothing)."""

    groups: tuple[CacheGroup, ...]
    num_slots: int
    places: tuple[LayerPlace | None, ...]

    def num_blocks_for_len(self, num_tokens: int, block_size: int) -> int:
        """The fewest blocks, of all groups together, with which a sequence can grow to `num_tokens` tokens."""
        num_blocks = cdiv(num_tokens, block_size)
        return sum(group.num_held_blocks(num_blocks, block_size) for group in self.groups)


def cache_layout(kinds: Seq[LayerKind]) -> CacheLayout:
    """The groups for a model whose layers are of these `kinds`; a group's kinds come in the order of first layers.

    Raises:
        UnsupportedError: a layer attends to an encoder or keeps a recurrent state, or no layer keeps anything.
    """
    layers_of: dict[CacheKind, list[int]] = {}
    for layer, kind in enumerate(kinds):
        if isinstance(kind, FullAttention | SlidingWindow):
            layers_of.setdefault(kind, []).append(layer)
        elif not isinstance(kind, Nothing):
            raise UnsupportedError(
                f"layer {layer} keeps {type(kind).__name__}; the KV cache supports FullAttention and SlidingWindow "
                "only; choose a model whose layers attend to their own sequence"
            )
    if not layers_of:
        raise UnsupportedError("no layer of the model keeps keys and values; choose a model with attention layers")
    num_slots = _num_slots([len(layers) for layers in layers_of.values()])
    groups = tuple(
        CacheGroup(kind, tuple(part)) for kind, layers in layers_of.items() for part in _deal(layers, num_slots)
    )
    places: list[LayerPlace | None] = [None] * len(kinds)
    for index, group in enumerate(groups):
        for slot, layer in enumerate(group.layers):
            places[layer] = LayerPlace(index, slot)
    return CacheLayout(groups, num_slots, tuple(places))


def _num_slots(counts: Seq[int]) -> int:
    """Layer-slots of a block, from the number of layers of each kind; see MAX_PADDED_RATIO."""
    fewest, most = min(counts), max(counts)
    return most if most < MAX_PADDED_RATIO * fewest else fewest


def _deal(layers: Seq[int], num_slots: int) -> list[Seq[int]]:
    """Groups of at most `num_slots` layers, in turn: each stretch of the model then has layers of every group."""
    num_groups = cdiv(len(layers), num_slots)
    return [layers[first::num_groups] for first in range(num_groups)]
