"""One chunk's copies: what is moved and hashed, and when."""

import pytest
import torch
from kit.device.digests import DIGESTS, wrong_copies

from lullm.arena.checksum import checksum
from lullm.arena.chunk_copies import ChunkCopies
from lullm.arena.host import HOST
from lullm.arena.transfer import Transfer
from lullm.units import MIB


@pytest.fixture
def transfer():
    with Transfer(HOST) as transfer:
        yield transfer


@pytest.fixture(params=DIGESTS)
def new_digest(request):
    return request.param


def random_bytes(size):
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


def test_filled_from_several_and_emptied_into_others(transfer, new_digest):
    pieces = [random_bytes(size) for size in (7, MIB + 3, 2 * MIB)]  # more than one part, not of whole parts
    memory = torch.zeros(3 * MIB, dtype=torch.uint8)
    chunk = ChunkCopies(memory, transfer, new_digest)
    rests = [chunk.fill(piece) for piece in pieces]
    assert [len(rest) for rest in rests] == [0, 0, 10] and chunk.is_through
    assert not memory.any(), "the host's copies wait for run"
    expected = torch.cat(pieces)[: 3 * MIB]
    assert chunk.digest() == checksum(expected, new_digest)
    assert torch.equal(memory, expected)

    back = ChunkCopies(memory, transfer, new_digest)
    places = [torch.zeros(size, dtype=torch.uint8) for size in (MIB, 2 * MIB - 5, 100)]
    rests = [back.empty(place) for place in places]
    assert [len(rest) for rest in rests] == [0, 0, 95] and back.is_through
    assert back.digest() == chunk.digest()
    assert torch.equal(torch.cat(places)[: 3 * MIB], expected)


def test_a_source_may_change_after_run(transfer, new_digest):
    source, memory = random_bytes(100), torch.zeros(300, dtype=torch.uint8)
    chunk = ChunkCopies(memory, transfer, new_digest)
    expected = []
    for _ in range(3):
        chunk.fill(source)
        chunk.run()
        expected.append(source.clone())
        source.add_(1)
    assert torch.equal(memory, torch.cat(expected))
    assert chunk.digest() == checksum(memory, new_digest)


def test_the_checksum_is_of_what_was_read(transfer, new_digest):
    source, memory = random_bytes(100), torch.ones(100, dtype=torch.uint8)
    chunk = ChunkCopies(memory, transfer, wrong_copies(new_digest))
    chunk.fill(source)
    assert chunk.digest() == checksum(source, new_digest) != checksum(memory, new_digest)


def test_without_checksums_the_bytes_move_too(transfer):
    source, memory = random_bytes(100), torch.zeros(100, dtype=torch.uint8)
    chunk = ChunkCopies(memory, transfer, None)
    chunk.fill(source)
    assert chunk.digest() == 0 and torch.equal(memory, source)
