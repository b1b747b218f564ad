"""Cache groups: which layers of a model share a block table, and where each layer's KV lies in a block.

All blocks of a pool are equal: a block has `num_slots` layer-slots, each with the keys and values of `block_size`
tokens for one layer. A group has at most `num_slots` layers of one kind; a block of the group holds the KV of all its
layers. So layer -> (group, slot): the slot names the tensors, the group names the block table. A model with one kind of
layers has one group with a slot per layer.

Where kinds differ in the size of a token's keys, the largest fills a slot, and a slot holds several layers of a kind
with smaller keys: its `num_shares`. So a block of that group holds more layers, not more tokens, and hashes, sharing
and swapping of blocks stay the same. In a slot's tensor, share i of block b is number `b * num_shares + i`; a kernel
needs to know no more. Layers that share the keys and values of an earlier layer have its place, and take no memory.

Where the layers are cut into stages of a pipeline, all stages have the same groups, since they read the same block
tables, and each has slots for its own layers only. So a block has fewer bytes on a stage, not fewer tokens.

A recurrent state has no tokens to fill slots with. It is cut into pieces of the size of a slot. From its first token to
its last, a sequence holds enough blocks of the same pool for the states of all its recurrent layers. So states and keys
share one budget, and blocks with a state are copied, swapped, cached and saved like any other. In a model with only
recurrent layers, a slot is as large as the state of a layer, so that a sequence holds one block.

An encoder, whose layers keep nothing, has no groups: its sequences hold no blocks, and both pools have none.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from lullm.errors import UnsupportedError
from lullm.types.layer_kind import (
    EncoderOnlyAttention,
    FullAttention,
    LayerKind,
    RecurrentState,
    SharedAttention,
    SlidingWindow,
    first_seen,
)
from lullm.types.sequence import Sequence
from lullm.units import cdiv

CacheKind = FullAttention | SlidingWindow | RecurrentState
"""The kinds that a block pool can keep."""

STATE_ITEM_BYTES = 4
"""Bytes of an element of a recurrent state, which is float32 for every type of cache."""

MAX_PADDED_RATIO = 1.5
"""Below this ratio between the most and the fewest layers of a kind, a block has a slot for each layer of the most.

12 full and 13 window layers become 2 groups in blocks of 13 slots (1 slot of 26 is empty); blocks of 12 slots would
need 3 groups (11 of 36 are empty). From this ratio on, the fewest layers fill the block and the others are dealt out: 4
full and 22 window layers become 1 + 6 groups of 4 slots (2 of 28 are empty); 22 slots would leave 18 of 44 empty, and
those in the full group, which grows with the sequence.
"""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers of one kind that share a block table. On a pipeline stage only the stage's own layers, maybe none.

    `layers[i]` lies in slot `i // num_shares` of every block of the group, in share `i % num_shares`. Recurrent layers
    are all in one group; layers beyond the slots of one block lie in further blocks (`LayerPlace`).

    Args:
        num_state_blocks: blocks of a sequence's state in a recurrent group; 0: a group with keys and values.
        num_shares: layers in a slot.
    """

    kind: CacheKind
    layers: tuple[int, ...]
    num_state_blocks: int = 0
    num_shares: int = 1

    @property
    def keeps_tokens(self) -> bool:
        """Whether blocks hold keys and values of tokens; otherwise a state."""
        return not isinstance(self.kind, RecurrentState)

    @property
    def window(self) -> int | None:
        """Tokens that a token sees, itself included; None: all before it."""
        return self.kind.window if isinstance(self.kind, SlidingWindow) else None

    @property
    def is_chunked(self) -> bool:
        """Whether windows lie side by side."""
        return isinstance(self.kind, SlidingWindow) and self.kind.is_chunked

    def num_blocks_behind(self, num_computed_tokens: int, block_size: int) -> int:
        """Leading blocks of a sequence that no later token sees, once `num_computed_tokens` are computed."""
        # Tokens after the next one see no earlier tokens than it does.
        return first_seen(num_computed_tokens, self.window, self.is_chunked) // block_size

    def num_held_blocks(self, num_blocks: int, block_size: int, num_tokens: int = 1) -> int:
        """The most of its first `num_blocks` blocks that a sequence holds at a time while it grows by `num_tokens`."""
        if not self.keeps_tokens:
            return self.num_state_blocks
        window = self.window
        return num_blocks if window is None else min(num_blocks, cdiv(window + num_tokens - 2, block_size) + 1)

    def num_admitted_tokens(self, seq: Sequence) -> int:
        """Tokens that get slots when a sequence is admitted: all; with a window only those that are cached."""
        return len(seq) if self.window is None else seq.num_computed_tokens


ONE_GROUP = (CacheGroup(FullAttention(), (0,)),)
"""The groups of a model with full attention in all layers, as block bookkeeping sees them."""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """The place of a layer's KV: the block tables of `group`, the tensors of `slot`, and there the share number
    `share`.

    `part`: the state of a recurrent layer starts in the group's block number `part` x (blocks of one layer's state).
    """

    group: int
    slot: int
    part: int = 0
    share: int = 0


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The groups of a model, and the place of each layer (None: no KV, or on another stage)."""

    groups: tuple[CacheGroup, ...]
    num_slots: int
    places: tuple[LayerPlace | None, ...]

    @property
    def whole_group(self) -> int | None:
        """The first group that keeps all tokens, by number; None: all have windows or states."""
        is_whole = (group.keeps_tokens and group.window is None for group in self.groups)
        return next((number for number, found in enumerate(is_whole) if found), None)

    def num_blocks_for_len(self, num_tokens: int, block_size: int) -> int:
        """The fewest blocks, of all groups together, with which a sequence can grow to `num_tokens` tokens."""
        num_blocks = cdiv(num_tokens, block_size)
        return sum(group.num_held_blocks(num_blocks, block_size) for group in self.groups)


def cache_layout(
    kinds: Seq[LayerKind], slot_bytes: int | None = None, stages: Seq[range] = (), stage: int = 0
) -> CacheLayout:
    """The groups of a model whose layers are of these `kinds`, in the order of each kind's first layer.

    Recurrent groups come last.

    Args:
        slot_bytes: of a layer-slot in one block. None: the caller needs places only; then recurrent groups have no
            `num_state_blocks`.
        stages: the layers of each stage of a pipeline; empty: one stage has all.
        stage: the one whose layers get places. A state's number of blocks is the same on all stages: the largest.

    Raises:
        UnsupportedError: no layer keeps a cache.
    """
    layers_of: dict[CacheKind, list[int]] = {}
    for layer, kind in enumerate(kinds):
        if isinstance(kind, FullAttention | SlidingWindow | RecurrentState):
            layers_of.setdefault(kind, []).append(layer)
    states = {kind: layers_of.pop(kind) for kind in list(layers_of) if isinstance(kind, RecurrentState)}
    if not layers_of and not states:
        if any(isinstance(kind, EncoderOnlyAttention) for kind in kinds):
            return CacheLayout((), 0, (None,) * len(kinds))
        raise UnsupportedError("no layer keeps anything between steps; choose a model that reads more than one token")
    shares = shares_of(list(layers_of))
    most = _num_slots([cdiv(len(layers), shares[kind]) for kind, layers in layers_of.items()])
    groups = [
        CacheGroup(kind, tuple(part), num_shares=shares[kind])
        for kind, layers in layers_of.items()
        for part in _deal(layers, most * shares[kind])
    ]
    stages = stages or [range(len(kinds))]
    slotted = groups or [CacheGroup(kind, tuple(layers)) for kind, layers in states.items()]
    num_slots = [_num_slots_within(slotted, layers) for layers in stages]
    for kind, layers in states.items():
        num_each = 0 if slot_bytes is None else num_state_blocks(kind, slot_bytes)
        parts = [cdiv(_num_within(layers, own), slots) for own, slots in zip(stages, num_slots, strict=True)]
        groups.append(CacheGroup(kind, tuple(layers), num_each * max(parts)))
    own = stages[stage]
    groups = [replace(group, layers=tuple(layer for layer in group.layers if layer in own)) for group in groups]
    return CacheLayout(tuple(groups), num_slots[stage], _places(kinds, groups, num_slots[stage]))


def _places(kinds: Seq[LayerKind], groups: Seq[CacheGroup], num_slots: int) -> tuple[LayerPlace | None, ...]:
    places: list[LayerPlace | None] = [None] * len(kinds)
    for index, group in enumerate(groups):
        for number, layer in enumerate(group.layers):
            slot, share = divmod(number, group.num_shares)
            part, slot = divmod(slot, num_slots)
            places[layer] = LayerPlace(index, slot, part, share)
    for layer, kind in enumerate(kinds):
        if isinstance(kind, SharedAttention):
            places[layer] = places[kind.layer]
    return tuple(places)


def _num_within(layers: Seq[int], stage: range) -> int:
    return sum(layer in stage for layer in layers)


def _num_slots_within(groups: Seq[CacheGroup], stage: range) -> int:
    """Layer-slots of a block on a stage; at least one, also with recurrent layers only."""
    return max(1, *(cdiv(_num_within(group.layers, stage), group.num_shares) for group in groups))


def shares_of(kinds: Seq[LayerKind]) -> dict[LayerKind, int]:
    """By kind of layers with keys and values, how many a slot holds; the largest kind fills it alone."""
    sizes = {
        kind: 1 if kind.heads is None else kind.heads.size
        for kind in kinds
        if isinstance(kind, FullAttention | SlidingWindow)
    }
    assert len({kind.heads is None for kind in kinds if kind in sizes}) <= 1, "all kinds name their heads, or none does"
    return {kind: max(sizes.values()) // size for kind, size in sizes.items()}


def num_state_blocks(kind: RecurrentState, slot_bytes: int) -> int:
    """Blocks for the state of one layer, which takes the whole slot in each."""
    return cdiv(kind.num_elements * STATE_ITEM_BYTES, slot_bytes)


def _num_slots(counts: Seq[int]) -> int:
    """Layer-slots of a block, from the number of slots that each kind's layers fill; see MAX_PADDED_RATIO."""
    fewest, most = min(counts, default=0), max(counts, default=0)
    return most if most < MAX_PADDED_RATIO * fewest else fewest


def _deal(layers: Seq[int], most: int) -> list[Seq[int]]:
    """Groups of at most `most` layers, dealt in turn, so that each stretch of the model has layers of every group."""
    num_groups = cdiv(len(layers), most)
    return [layers[first::num_groups] for first in range(num_groups)]
