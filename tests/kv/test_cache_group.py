"""CacheLayout: kinds of layers become groups over equal blocks, with little padding."""

import pytest

from lullm.errors import UnsupportedError
from lullm.kv.cache_group import CacheGroup, CacheLayout, LayerPlace, cache_layout, num_state_blocks
from lullm.types.layer_kind import (
    EncoderOnlyAttention,
    FullAttention,
    KVHeads,
    LayerKind,
    Nothing,
    RecurrentState,
    SharedAttention,
    SlidingWindow,
)

FULL, WINDOW, WIDE = FullAttention(), SlidingWindow(512), SlidingWindow(4096)
STATE = RecurrentState(((16, 4), (4, 4)))


def mixed(num_full: int, num_window: int) -> list[LayerKind]:
    return [FULL] * num_full + [WINDOW] * num_window


@pytest.mark.parametrize("kind", [FULL, WINDOW])
def test_one_kind_is_one_group_with_a_slot_per_layer(kind):
    layout = cache_layout([kind] * 28)
    assert layout.groups == (CacheGroup(kind, tuple(range(28))),) and layout.num_slots == 28
    assert layout.places == tuple(LayerPlace(0, i) for i in range(28))


@pytest.mark.parametrize(
    ("num_full", "num_window", "num_groups", "num_slots"),
    [
        (4, 22, 1 + 6, 4),  # Gemma 3 1B
        (5, 29, 1 + 6, 5),  # 4B
        (8, 40, 1 + 5, 8),  # 12B
        (10, 52, 1 + 6, 10),  # 27B
        (12, 13, 2, 13),
        (13, 12, 2, 13),
        (2, 3, 1 + 2, 2),  # exactly the ratio
        (14, 14, 2, 14),
    ],
)
def test_padding_is_small(num_full, num_window, num_groups, num_slots):
    layout = cache_layout(mixed(num_full, num_window))
    assert (len(layout.groups), layout.num_slots) == (num_groups, num_slots)
    num_empty = num_slots * num_groups - num_full - num_window
    assert num_empty / (num_slots * num_groups) < 1 / 3


@pytest.mark.parametrize("num_full", range(1, 20))
@pytest.mark.parametrize("num_window", range(1, 20))
def test_every_layer_has_a_place_of_its_own(num_full, num_window):
    kinds = mixed(num_full, num_window)
    layout = cache_layout(kinds)
    assert len(set(layout.places)) == len(kinds)
    for layer, place in enumerate(layout.places):
        group = layout.groups[place.group]
        assert group.kind == kinds[layer] and group.layers[place.slot] == layer and place.slot < layout.num_slots
    sizes = [len(group.layers) for group in layout.groups]
    assert max(sizes) == layout.num_slots, "no slot stays empty in every group"
    for kind in (FULL, WINDOW):
        own = [len(group.layers) for group in layout.groups if group.kind == kind]
        assert max(own) - min(own) <= 1


def test_layers_are_dealt_out_in_turn():
    layout = cache_layout([WINDOW, WINDOW, FULL, WINDOW, WINDOW, FULL])
    assert [group.layers for group in layout.groups] == [(0, 3), (1, 4), (2, 5)]


def test_windows_of_two_sizes_are_two_kinds():
    layout = cache_layout([WINDOW, WIDE, WINDOW, WIDE])
    assert [group.window for group in layout.groups] == [512, 4096]


def test_layers_that_keep_nothing_have_no_place():
    layout = cache_layout([FULL, Nothing(), FULL])
    assert layout.places == (LayerPlace(0, 0), None, LayerPlace(0, 1)) and layout.num_slots == 2


WIDE_FULL, NARROW_WINDOW = FullAttention(KVHeads(1, 512)), SlidingWindow(512, KVHeads(1, 256))


def test_two_narrow_layers_stand_in_the_slot_of_a_wide_one():
    """Gemma 4 E2B: 35 layers, the last 20 share the keys and values of the layers 13 and 14."""
    own = [WIDE_FULL if (layer + 1) % 5 == 0 else NARROW_WINDOW for layer in range(15)]
    shared = [SharedAttention(14 if (layer + 1) % 5 == 0 else 13) for layer in range(15, 35)]
    layout = cache_layout([*own, *shared])
    assert layout.num_slots == 3 and [len(group.layers) for group in layout.groups] == [6, 6, 3]
    assert [group.num_shares for group in layout.groups] == [2, 2, 1]
    assert len(set(layout.places[:15])) == 15
    for index, group in enumerate(layout.groups):
        places = [layout.places[layer] for layer in group.layers]
        assert places == [
            LayerPlace(index, i // group.num_shares, 0, i % group.num_shares) for i in range(len(group.layers))
        ]
    assert layout.places[34] == layout.places[14] and layout.places[15] == layout.places[13]
    # Layers that share take nothing: two groups with a window and one without hold all of a sequence.
    assert layout.num_blocks_for_len(32_000, 16) == 2_000 + 2 * 33


def test_fewer_heads_in_full_layers():
    """Gemma 4 31B: 50 layers of 16 x 256, 10 of 4 x 512, which are half as large."""
    kinds = [FullAttention(KVHeads(4, 512)) if (layer + 1) % 6 == 0 else SlidingWindow(1024, KVHeads(16, 256))
             for layer in range(60)]  # fmt: skip
    layout = cache_layout(kinds)
    assert layout.num_slots == 5
    assert [(len(group.layers), group.num_shares) for group in layout.groups] == [(5, 1)] * 10 + [(10, 2)]


@pytest.mark.parametrize("num_narrow", range(1, 14))
@pytest.mark.parametrize("num_wide", range(1, 8))
def test_every_narrow_layer_has_a_place_of_its_own(num_wide, num_narrow):
    layout = cache_layout([FullAttention(KVHeads(2, 96))] * num_wide + [SlidingWindow(8, KVHeads(1, 64))] * num_narrow)
    assert len(set(layout.places)) == num_wide + num_narrow
    for place in layout.places:
        group = layout.groups[place.group]
        assert place.share < group.num_shares == (1 if group.window is None else 3) and place.slot < layout.num_slots
    for index, group in enumerate(layout.groups):
        own = {(place.slot, place.share) for place in layout.places if place.group == index}
        assert len(own) == len(group.layers)


def test_a_model_that_keeps_nothing_is_refused():
    with pytest.raises(UnsupportedError, match="no layer"):
        cache_layout([Nothing()] * 4)


def test_a_model_without_attention_has_a_slot_for_each_state():
    size = STATE.num_elements * 4
    layout = cache_layout([STATE] * 4, slot_bytes=size)
    assert layout.groups == (CacheGroup(STATE, (0, 1, 2, 3), 1),) and layout.num_slots == 4
    assert layout.places == tuple(LayerPlace(0, slot) for slot in range(4))
    assert layout.num_blocks_for_len(10**9, 16) == 1, "a sequence of any length"
    assert cache_layout([STATE] * 4, size // 2).groups[0].num_state_blocks == 2
    second = cache_layout([STATE] * 4, size, stages=(range(3), range(3, 4)), stage=1)
    assert second.num_slots == 1 and second.places == (None, None, None, LayerPlace(0, 0))


def test_recurrent_layers_are_one_group_behind_the_others():
    layout = cache_layout([STATE, STATE, STATE, FULL, STATE, STATE, STATE, FULL], slot_bytes=128)
    states = CacheGroup(STATE, (0, 1, 2, 4, 5, 6), 3 * 3)
    assert layout.groups == (CacheGroup(FULL, (3, 7)), states) and layout.num_slots == 2
    assert not states.keeps_tokens and states.window is None
    # A layer's state takes 3 blocks: 80 elements of 4 bytes, in slots of 128 bytes.
    assert num_state_blocks(STATE, 128) == 3 and num_state_blocks(STATE, 320) == 1 and num_state_blocks(STATE, 319) == 2
    places = [layout.places[layer] for layer in states.layers]
    assert places == [LayerPlace(1, number % 2, number // 2) for number in range(6)]
    assert layout.num_blocks_for_len(1, 16) == 1 + 9
    assert layout.num_blocks_for_len(160, 16) == 10 + 9


def test_a_window_has_a_token():
    with pytest.raises(ValueError, match="at least 1 token"):
        SlidingWindow(0)


def test_long_sequences_need_blocks_in_full_groups_only():
    layout = cache_layout(mixed(4, 22))
    assert layout.num_blocks_for_len(16, 16) == 7
    assert layout.num_blocks_for_len(512, 16) == 7 * 32
    # 511 tokens before the one being computed touch 33 blocks at most.
    assert layout.num_blocks_for_len(32_000, 16) == 2_000 + 6 * 33


def test_a_chunk_is_given_back_as_a_whole():
    """With chunks of 32 the token at 31 sees 0..31, and the one at 32 itself alone."""
    sliding, chunks = (CacheGroup(SlidingWindow(32, is_chunked=is_chunked), (0,)) for is_chunked in (False, True))
    assert [chunks.num_blocks_behind(num, 8) for num in (0, 31, 32, 63, 64, 70)] == [0, 0, 4, 4, 8, 8]
    assert [sliding.num_blocks_behind(num, 8) for num in (0, 31, 32, 63, 64, 70)] == [0, 0, 0, 4, 4, 4]
    assert CacheGroup(SlidingWindow(20, is_chunked=True), (0,)).num_blocks_behind(45, 8) == 5, "20 to 39, and 40 on"
    kinds = [FULL, SlidingWindow(512, is_chunked=True), WINDOW]
    assert [group.is_chunked for group in cache_layout(kinds).groups] == [False, True, False]


def test_an_encoder_has_no_groups():
    layout = cache_layout([EncoderOnlyAttention(), EncoderOnlyAttention(7)], slot_bytes=0)
    assert layout == CacheLayout((), 0, (None, None))
    assert layout.num_blocks_for_len(1000, 16) == 0 and layout.whole_group is None
