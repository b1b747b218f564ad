"""CacheLayout: kinds of layers become groups over equal blocks, with little padding."""

import pytest

from lullm.errors import UnsupportedError
from lullm.kv.cache_group import CacheGroup, LayerPlace, cache_layout, num_state_blocks
from lullm.types.layer_kind import EncoderAttention, FullAttention, LayerKind, Nothing, RecurrentState, SlidingWindow

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


def test_kinds_without_machinery_are_refused():
    with pytest.raises(UnsupportedError, match="layer 1 keeps EncoderAttention"):
        cache_layout([FULL, EncoderAttention()])


@pytest.mark.parametrize("kind", [Nothing(), STATE])
def test_a_model_without_attention_is_refused(kind):
    with pytest.raises(UnsupportedError, match="no layer"):
        cache_layout([kind] * 4)


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
