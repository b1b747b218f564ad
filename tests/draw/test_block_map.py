"""The block map as text and as a picture."""

import pytest
from kit.png import read_png

from lullm.draw.block_map import BlockMap
from lullm.kv.snapshot import BlockOwner, BlockSnapshot, MemorySnapshot, PoolSnapshot


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
