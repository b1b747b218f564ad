"""Cache groups: which layers of a model share their block tables, and where each layer's KV stands in a block.

All blocks of a pool are equal: a block has `num_slots` layer-slots, each with the keys and values of `block_size`
tokens for one layer. A group has at most `num_slots` layers of one kind; a block that the group takes holds the KV of
all its layers. So layer -> (group, slot): the slot names the tensors, the group names the block table. A model with
one kind of layers has one group with a slot per layer.

A recurrent state has no tokens to stand in slots. It is cut into pieces of the size of a slot: a sequence holds as many
blocks of the same pool as the states of all its recurrent layers take, from its first token to its last. So states and
keys share one budget, and blocks that hold a state are copied, swapped, cached and saved like any other.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from lullm.errors import UnsupportedError
from lullm.types.layer_kind import FullAttention, LayerKind, Nothing, RecurrentState, SlidingWindow
from lullm.types.sequence import Sequence
from lullm.units import cdiv

CacheKind = FullAttention | SlidingWindow | RecurrentState
"""The kinds that a block pool can keep."""

STATE_ITEM_BYTES = 4
"""Of an element of a recurrent state, which is float32 whatever the cache's type is."""

MAX_PADDED_RATIO = 1.5
"""Below this ratio between the most and the fewest layers of a kind, a block has a slot for each layer of the most.

12 full and 13 window layers become 2 groups in blocks of 13 slots (1 slot of 26 is empty); blocks of 12 slots would
need 3 groups (11 of 36 are empty). From this ratio on, the fewest layers fill the block and the others are dealt out:
4 full and 22 window layers become 1 + 6 groups of 4 slots (2 of 28 are empty); 22 slots would leave 18 of 44 empty,
and those in the full group, which grows with the sequence.
"""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers of one kind that share a block table; `layers[i]` stands in slot i of every block of the group.

    Recurrent layers are all in one group: beyond the slots of a block they go on in the blocks behind (`LayerPlace`).

    Args:
        num_state_blocks: blocks of a sequence's state in a recurrent group; 0: a group that keeps keys and values.
    """

    kind: CacheKind
    layers: tuple[int, ...]
    num_state_blocks: int = 0

    @property
    def keeps_tokens(self) -> bool:
        """Whether blocks hold keys and values of tokens; else a state."""
        return not isinstance(self.kind, RecurrentState)

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
        if not self.keeps_tokens:
            return self.num_state_blocks
        window = self.window
        return num_blocks if window is None else min(num_blocks, cdiv(window - 1, block_size) + 1)

    def num_admitted_tokens(self, seq: Sequence) -> int:
        """Tokens that get their slots when a sequence is admitted: all, but with a window those that are cached."""
        return len(seq) if self.window is None else seq.num_computed_tokens


ONE_GROUP = (CacheGroup(FullAttention(), (0,)),)
"""The groups of a model whose layers all have full attention, as far as the bookkeeping of blocks goes."""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a layer's KV stands: the block tables of `group`, the tensors of `slot`.

    `part`: a recurrent layer's state is in the group's blocks from `part` times as many on as one layer takes.
    """

    group: int
    slot: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of a model, and the place of each layer (None: it keeps nothing)."""

    groups: tuple[CacheGroup, ...]
    num_slots: int
    places: tuple[LayerPlace | None, ...]

    @property
    def token_layers(self) -> list[int]:
        """The layers that keep keys and values, in order."""
        return sorted(layer for group in self.groups if group.keeps_tokens for layer in group.layers)

    def num_blocks_for_len(self, num_tokens: int, block_size: int) -> int:
        """The fewest blocks, of all groups together, with which a sequence can grow to `num_tokens` tokens."""
        num_blocks = cdiv(num_tokens, block_size)
        return sum(group.num_held_blocks(num_blocks, block_size) for group in self.groups)


def cache_layout(kinds: Seq[LayerKind], slot_bytes: int | None = None) -> CacheLayout:
    """The groups for a model whose layers are of these `kinds`; a group's kinds come in the order of first layers.

    Recurrent groups come last.

    Args:
        slot_bytes: of a layer-slot in one block. None: no more than places is asked for, so that recurrent groups do
            not know how many blocks they need.

    Raises:
        UnsupportedError: a layer attends to an encoder, or no layer keeps keys and values.
    """
    layers_of: dict[CacheKind, list[int]] = {}
    for layer, kind in enumerate(kinds):
        if isinstance(kind, FullAttention | SlidingWindow | RecurrentState):
            layers_of.setdefault(kind, []).append(layer)
        elif not isinstance(kind, Nothing):
            raise UnsupportedError(
                f"layer {layer} keeps {type(kind).__name__}; the KV cache supports FullAttention, SlidingWindow and "
                "RecurrentState only; choose a model whose layers attend to their own sequence"
            )
    states = {kind: layers_of.pop(kind) for kind in list(layers_of) if isinstance(kind, RecurrentState)}
    if not layers_of:
        raise UnsupportedError("no layer of the model keeps keys and values; choose a model with attention layers")
    num_slots = _num_slots([len(layers) for layers in layers_of.values()])
    groups = [CacheGroup(kind, tuple(part)) for kind, layers in layers_of.items() for part in _deal(layers, num_slots)]
    for kind, layers in states.items():
        num_each = 0 if slot_bytes is None else num_state_blocks(kind, slot_bytes)
        groups.append(CacheGroup(kind, tuple(layers), num_each * cdiv(len(layers), num_slots)))
    places: list[LayerPlace | None] = [None] * len(kinds)
    for index, group in enumerate(groups):
        for number, layer in enumerate(group.layers):
            part, slot = divmod(number, num_slots)
            places[layer] = LayerPlace(index, slot, part)
    return CacheLayout(tuple(groups), num_slots, tuple(places))


def num_state_blocks(kind: RecurrentState, slot_bytes: int) -> int:
    """Blocks that the state of one layer takes: in each, all of its slot."""
    return cdiv(kind.num_elements * STATE_ITEM_BYTES, slot_bytes)


def _num_slots(counts: Seq[int]) -> int:
    """Layer-slots of a block, from the number of layers of each kind; see MAX_PADDED_RATIO."""
    fewest, most = min(counts), max(counts)
    return most if most < MAX_PADDED_RATIO * fewest else fewest


def _deal(layers: Seq[int], num_slots: int) -> list[Seq[int]]:
    """Groups of at most `num_slots` layers, in turn: each stretch of the model then has layers of every group."""
    num_groups = cdiv(len(layers), num_slots)
    return [layers[first::num_groups] for first in range(num_groups)]
