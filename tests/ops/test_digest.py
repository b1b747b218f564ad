"""Native checksums: the value of the definition, in every instruction set, and a change of the bytes changes it."""

import numpy as np
import pytest
import torch

from lullm.ops.cpu.digest import NativeDigest
from lullm.ops.cpu.library import absence, load_library

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

LIBRARY = load_library()
WORDS = 16
STRIPE = 8 * WORDS


@pytest.fixture(autouse=True, params=LIBRARY.available_isas)
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


def stirred(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def defined(data):
    """The value by the definition in `csrc/digest/digest.h`."""
    products = np.array([stirred(word + 1) for word in range(WORDS)], np.uint64)
    parities = products.copy()
    padded = np.zeros(-(-len(data) // STRIPE) * STRIPE, np.uint8)
    padded[: len(data)] = data
    for stripe in padded.view(np.uint64).reshape(-1, WORDS):
        products ^= stripe
        products = (products ^ products >> np.uint64(32)) * np.uint64(0x9E3779B1)
        parities = (parities << np.uint64(27) | parities >> np.uint64(37)) ^ stripe
    halves = []
    for sums in (products, parities):
        value = stirred(len(data))
        for one in sums.tolist():
            value = stirred(value ^ one)
        halves.append(value)
    return halves[0] << 64 | halves[1]


def value_of(data):
    digest = NativeDigest()
    digest.update(data)
    return digest.value()


def random_bytes(size, seed=0):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [0, 1, 7, 8, STRIPE - 1, STRIPE, STRIPE + 1, 5 * STRIPE, 100_003])
def test_the_value_is_the_defined_one(size):
    data = random_bytes(size + 3)[3:]  # at an odd address
    assert value_of(data) == defined(data.numpy())


def test_pieces_and_copies_make_no_difference():
    """Cut anywhere, hashed or copied on the way, from and to any address; a value in between disturbs nothing."""
    rng = np.random.default_rng(0)
    data = random_bytes(20_000)
    room = torch.zeros(20_002, dtype=torch.uint8)
    for _ in range(20):
        cuts = np.sort(rng.integers(0, len(data) + 1, 8)).tolist()
        digest = NativeDigest()
        room.zero_()
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if rng.random() < 0.5:
                digest.update(data[start:end])
            else:
                digest.copy(room[1 + start : 1 + end], data[start:end])
                assert torch.equal(room[1 + start : 1 + end], data[start:end])
            digest.value()
        assert digest.value() == value_of(data)
        assert room[0] == 0 and room[-1] == 0, "nothing beside the destination is written"


def test_every_flip_changes_the_value():
    data = random_bytes(3 * STRIPE + 5)
    values = {value_of(data)}
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            values.add(value_of(data))
            data[position] ^= 1 << bit
    assert len(values) == 8 * len(data) + 1


def test_changes_of_several_words_do_not_cancel():
    """The same bits of a word in two or three stripes, stripes and words that change places, lengths of zeros."""
    data = random_bytes(8 * STRIPE)
    rows = data.view(-1, STRIPE)
    changed = [data]
    top, both = 1 << 63, 1 << 63 | 1 << 31
    for masks in ([1 << bit] * 2 for bit in range(64)):
        changed += [with_flips(data, {0: masks[0], row: masks[1]}) for row in range(1, 8)]
    changed += [with_flips(data, {row: both, row + 1: top}) for row in range(7)]  # products alone do not see these
    changed += [with_flips(data, {0: 1 << 31, 1: 1 << 31}), with_flips(data, {0: top, 2: top})]  # nor tell these apart
    for row in range(1, 8):
        order = torch.arange(8)
        order[[0, row]] = order[[row, 0]]
        changed += [rows[order].flatten(), data.view(8, WORDS, 8)[:, torch.arange(WORDS).roll(row)].flatten()]
    changed += [torch.zeros(size, dtype=torch.uint8) for size in range(3 * STRIPE)]
    changed += [torch.full((STRIPE,), byte, dtype=torch.uint8) for byte in range(1, 256)]
    different = {one.numpy().tobytes() for one in changed}
    assert len({value_of(one) for one in changed}) == len(different) >= len(changed) - 2


def with_flips(data, masks):
    """The first word of some stripes, by their numbers, with bits flipped."""
    words = data.clone().numpy().view(np.uint64).reshape(-1, WORDS)
    for row, mask in masks.items():
        words[row, 0] ^= np.uint64(mask)
    return torch.from_numpy(words.view(np.uint8).flatten())


def test_random_damage_is_noticed():
    data = random_bytes(4096)
    rng = np.random.default_rng(1)
    expected = value_of(data)
    for _ in range(2000):
        damaged = data.clone()
        start, length = int(rng.integers(0, 4095)), int(rng.integers(1, 600))
        piece = damaged[start : start + length]
        piece.copy_(torch.from_numpy(rng.integers(0, 256, len(piece), np.uint8)))
        assert torch.equal(damaged, data) or value_of(damaged) != expected
