"""Numbers of rows from tensors, arrays and files: bit for bit those of torch, and no code of whoever wrote a file."""

import io
import pickle
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save

from lullm.engine.rows.values import RowsError, array_of, checked, pieces, placed, read_file
from lullm.types.vision.given import GivenRows
from lullm.types.vision.tile import RowGeometry, Tile, TilePlace, without_given

ROWS = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
WIDE = torch.cat([ROWS * 10.0**power for power in range(-40, 5, 3)])  # denormal ones, too
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def npy(values, **options):
    file = io.BytesIO()
    np.save(file, values, **options)
    return file.getvalue()


@pytest.mark.parametrize("own", NAMES, ids=str)
@pytest.mark.parametrize("given", [*NAMES, torch.float64], ids=str)
def test_every_type_becomes_every_type_as_in_torch(own, given):
    tensor = WIDE.to(given)
    values = checked(read_file(save({"any name": tensor})), 8, NAMES[own], 100)
    assert values.tobytes() == tensor.to(own).view(torch.uint8).numpy().tobytes()
    assert checked(array_of(tensor), 8, NAMES[own], 100).tobytes() == values.tobytes()


def test_ties_and_the_largest_numbers():
    bits = torch.arange(0x3F7F0000, 0x3F830000, 0x2000, dtype=torch.int32)
    halves = torch.cat([bits, bits + 1, bits - 1]).view(torch.float32)[:88].view(11, 8)
    values = checked(halves.numpy(), 8, "bfloat16", 100)
    assert values.tobytes() == halves.bfloat16().view(torch.uint8).numpy().tobytes()
    largest = np.full((1, 8), np.finfo(np.float32).max, np.float32)
    assert checked(largest, 8, "float32", 9).max() == largest.max()
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(RowsError, match="finite"):
            checked(largest, 8, dtype, 9)


@pytest.mark.parametrize("values", [ROWS.numpy(), np.asfortranarray(ROWS.numpy()), ROWS.numpy().astype(">f4")])
def test_npy(values):
    assert np.array_equal(read_file(npy(values)), ROWS.numpy())


def torch_file(**options):
    file = io.BytesIO()
    torch.save(ROWS, file, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (torch_file(), "can run code and is never read; take safetensors.torch.save"),
        (torch_file(_use_new_zipfile_serialization=False), "can run code"),
        (pickle.dumps(ROWS.numpy()), "can run code"),
        (npy(np.array([{}, {}]), allow_pickle=True), "floating numbers"),
        (npy(ROWS.numpy())[:-4], "cannot be read"),
        (npy(ROWS.numpy())[:20], "cannot be read"),
        (npy(ROWS.numpy()).replace(b"(5, 8)", b"(9**99)"), "cannot be read"),
        (npy(ROWS.long().numpy()), "floating numbers"),
        (b"", "neither"),
        (b"hello", "neither"),
        (struct.pack("<Q", 1 << 60) + b"{}", "neither"),
        (save({"a": ROWS})[:-1], "neither"),
        (save({"a": ROWS, "b": ROWS.clone()}), "2 tensors"),
        (save({"a": ROWS.long()}), "type I64"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_files_that_are_no_rows(data, words):
    with pytest.raises(RowsError, match=words):
        read_file(data)


def test_a_header_of_many_numbers_allocates_nothing():
    head = npy(np.zeros((1, 1)))
    data = head.replace(b"(1, 1), }           ", b"(99999, 99999999), }")
    assert data != head
    with pytest.raises(RowsError, match="cannot be read"):
        read_file(data)


def test_empty_tensors_have_a_shape():
    assert read_file(save({"a": torch.zeros(0, 8)})).shape == (0, 8)
    assert read_file(npy(np.zeros((0, 8)))).shape == (0, 8)


def test_pieces_are_whole_blocks():
    rows = checked(torch.randn(70, 8).numpy(), 8, "float32", 100)
    for block_size, sizes in ((8, [16, 16, 16, 16, 6]), (6, [18, 18, 18, 16]), (32, [32, 32, 6])):
        parts = pieces(rows, "float32", block_size)
        assert [part.num_rows for part in parts] == sizes
        assert b"".join(part.values for part in parts) == rows.tobytes()
    assert pieces(rows, "float32", 8)[0].digest == pieces(rows[:20], "float32", 8)[0].digest


def test_names_of_equal_bytes():
    made = {
        GivenRows.of(num, dtype, b"0" * 16).digest for num, dtype in ((1, "float32"), (2, "float32"), (2, "float16"))
    }
    assert len(made | {Tile.of(1, 1, b"0" * 16).digest}) == 4


def test_rows_before_a_prompt():
    first, second = GivenRows.of(2, "float32", b"a"), GivenRows.of(1, "float32", b"b")
    tile = TilePlace(Tile.of(1, 1, b""), 1, 2, RowGeometry(2))
    ids, places = placed((first, second), [7, 8, 8, 9], (tile,))
    assert ids == [0, 0, 0, 7, 8, 8, 9]
    assert places == (TilePlace(first, 0, 2), TilePlace(second, 2, 1), TilePlace(tile.tile, 4, 2, RowGeometry(2)))
    assert without_given([*ids, 0, 1], places) == [7, 8, 8, 9, 0, 1]
    assert placed((), [1], (tile,)) == ([1], (tile,))
