"""`lullm memory` with a tiny random model, the block map and the PNG it draws."""

import struct
import zlib

import pytest

from lullm.cli.block_map import BlockMap
from lullm.cli.main import main
from lullm.cli.png import Canvas
from lullm.kv.snapshot import BlockOwner, BlockSnapshot, MemorySnapshot, PoolSnapshot


def read_png(data: bytes) -> list[list[tuple[int, int, int]]]:
    """Rows of pixels, checksums verified."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        chunks[kind] = data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + chunks[kind])
        at += 12 + size
    width, height, depth, color_type = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, color_type) == (8, 2)
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (1 + 3 * width)
    rows = [raw[y * (1 + 3 * width) + 1 : (y + 1) * (1 + 3 * width)] for y in range(height)]
    return [[tuple(row[3 * x : 3 * x + 3]) for x in range(width)] for row in rows]


def test_canvas():
    canvas = Canvas(20, 12)
    canvas.fill(-2, 1, 4, 2, (255, 0, 0))
    canvas.fill(18, 11, 9, 9, (0, 0, 255))
    canvas.text(4, 0, "i")
    rows = read_png(canvas.encode())
    red = [(x, y) for y in range(12) for x in range(20) if rows[y][x] == (255, 0, 0)]
    assert red == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert [(x, y) for y in range(12) for x in range(20) if rows[y][x] == (0, 0, 255)] == [(18, 11), (19, 11)]
    assert [rows[0][x] == (0, 0, 0) for x in range(4, 10)] == [True] * 6, "the upper bar of the letter"
    assert [rows[3][x] == (0, 0, 0) for x in range(4, 10)] == [False, False, True, True, False, False]


def block(block_id: int, *owners: str, num_tokens: int = 0, content: str | None = None) -> BlockSnapshot:
    return BlockSnapshot(block_id, tuple(BlockOwner(o, n) for n, o in enumerate(owners)), num_tokens, content)


@pytest.fixture
def block_map() -> BlockMap:
    device = (block(0, "x", num_tokens=4), block(1, "y", num_tokens=2), block(2, "x", "y", num_tokens=4),
              block(3, num_tokens=4, content="00"), block(4))  # fmt: skip
    host = (block(0, "y", "y", num_tokens=1), block(1))
    block_map = BlockMap()
    for step in (1, 2):
        block_map.add(step, MemorySnapshot(4, PoolSnapshot(device), PoolSnapshot(host)))
    return block_map


def test_text(block_map):
    lines = block_map.text().splitlines()
    assert lines[1:3] == ["   1 |Ab#:.| |b.|", "   2 |Ab#:.| |b.|"]
    assert lines[3] == "1 block of 4 tokens per column"
    assert block_map.legend().startswith("a x, b y, ")
    narrow = block_map.text(width=16, max_rows=1).splitlines()
    assert len(narrow) == 3 and narrow[1] == "   1 |A#.| |b|"
    assert narrow[-1].startswith("2 blocks of")


def test_picture(block_map, tmp_path):
    block_map.write_png(tmp_path / "map.png", "title")
    rows = read_png((tmp_path / "map.png").read_bytes())
    colors = {pixel for row in rows for pixel in row}
    # Black, white, free, cached; of each owner the full and the pale colour (x has no empty slot).
    assert {(0, 0, 0), (255, 255, 255), (246, 246, 246), (190, 190, 190)} < colors and len(colors) == 4 + 3


FLAGS = ("--dtype", "float32", "--block-size", "8", "--max-model-len", "256", "--num-gpu-blocks-override", "32")


def test_memory(qwen3_folder, tmp_path, capsys):
    picture = tmp_path / "map.png"
    assert main(["memory", "--model", str(qwen3_folder), *FLAGS, "--png", str(picture)]) == 0
    out, err = capsys.readouterr()
    assert "a chat-1, b long" in out and " swap (mode) " in out and str(picture) in err
    rows = [line for line in out.splitlines() if line.count("|") == 4][1:]
    assert len(rows) > 10 and any("#" in row for row in rows), "the chats share their first blocks"
    assert len(read_png(picture.read_bytes())) > 100


def test_memory_is_refused_before_the_model_is_loaded(tmp_path, capsys):
    assert main(["memory", "--png", str(tmp_path / "missing" / "map.png")]) == 2
    assert "does not exist" in capsys.readouterr().err
