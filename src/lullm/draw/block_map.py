"""BlockMap: the KV blocks over time, drawn from memory snapshots. A row is a step, a column is a block.

A block has the colour of the request that holds it: full for slots with tokens, pale for empty slots. Grey: no request
holds the block, but its content can still be found. White: free. A black mark: several sequences share the block.
"""

import colorsys
from collections import Counter
from itertools import accumulate
from pathlib import Path

from lullm.draw.canvas import BLACK, TEXT_HEIGHT, WHITE, Canvas, Color, text_width
from lullm.kv.snapshot import BlockSnapshot, MemorySnapshot, PoolSnapshot
from lullm.units import cdiv

FREE: Color = (246, 246, 246)
CACHED: Color = (190, 190, 190)
_MARGIN = 12
_SWATCH = 12
_MAX_LEGEND = 40  # the colours of more owners look alike
_MAP_WIDTH, _MAP_HEIGHT = 1100, 640  # pixels to aim at
_LINE_HEIGHT = TEXT_HEIGHT + 8
_TOP = _MARGIN + 2 * _LINE_HEIGHT  # of the map, below the title and the pools' names
_CellSize = tuple[int, int]  # width and height of a block

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class BlockMap:
    """Snapshots in the order of their steps, and a letter and a colour for each request in them."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, MemorySnapshot]] = []
        self._owners: dict[str, int] = {}  # request id -> number, by first appearance

    def add(self, step: int, snapshot: MemorySnapshot) -> None:
        """Append the memory after a step."""
        self._rows.append((step, snapshot))
        for block in _blocks(snapshot):
            for request_id in block.request_ids:
                self._owners.setdefault(request_id, len(self._owners))

    # -- text ----------------------------------------------------------------------------------------------------

    def text(self, width: int = 100, max_rows: int = 48) -> str:
        """Lines of at most `width` characters: a letter per request, capital where all slots hold tokens.

        '#': several requests hold the block; ':': cached; '.': free. If there are more blocks than columns, a column
        shows the commonest sign of several neighbours. With more steps than `max_rows`, some are left out.
        """
        if not self._rows:
            return ""
        first = self._rows[0][1]
        num_blocks = len(first.device.blocks) + len(first.host.blocks)
        label_width = max(len(str(self._rows[-1][0])), len("step"))
        per_column = cdiv(num_blocks, max(width - label_width - 8, 1))  # 8: the bars, and rounding up twice
        every = cdiv(len(self._rows), max_rows)

        def line(label: object, device: str, host: str) -> str:
            return f"{label:>{label_width}} |{device}|" + (f" |{host}|" if first.host.blocks else "")

        lines = [line("step", *(_fit(name, cdiv(len(pool.blocks), per_column)) for name, pool in _pools(first)))]
        for step, snapshot in self._rows[::every]:
            lines.append(line(step, *(self._columns(pool.blocks, per_column) for _, pool in _pools(snapshot))))
        lines.append(f"{per_column} block{'s' if per_column > 1 else ''} of {first.block_size} tokens per column")
        return "\n".join(lines)

    def legend(self) -> str:
        """The letters and signs, explained."""
        names = [f"{self._letter(request_id)} {request_id}" for request_id in self._owners]
        return ", ".join([*names, "capital: full", "# several requests", ": cached", ". free"])

    def _columns(self, blocks: tuple[BlockSnapshot, ...], per_column: int) -> str:
        signs = [self._sign(block, len(block.request_ids)) for block in blocks]
        groups = (signs[start : start + per_column] for start in range(0, len(signs), per_column))
        return "".join(Counter(group).most_common(1)[0][0] for group in groups)

    def _sign(self, block: BlockSnapshot, num_requests: int) -> str:
        if num_requests == 0:
            return ":" if block.state == "cached" else "."
        if num_requests > 1:
            return "#"
        letter = self._letter(block.request_ids[0])
        return letter.upper() if block.num_tokens == self._rows[0][1].block_size else letter

    def _letter(self, request_id: str) -> str:
        return _LETTERS[self._owners[request_id] % len(_LETTERS)]

    # -- picture -------------------------------------------------------------------------------------------------

    def write_png(self, path: Path, title: str) -> None:
        """Write the picture. Raises OSError."""
        self.canvas(title).write(path)

    def canvas(self, title: str) -> Canvas:
        """All rows; at least one pixel per block."""
        nums = [len(pool.blocks) for _, pool in _pools(self._rows[0][1]) if pool.blocks]
        cell = max(1, min(12, _MAP_WIDTH // sum(nums))), max(1, min(8, _MAP_HEIGHT // len(self._rows)))
        left = _MARGIN + text_width(f"{self._rows[-1][0]} ")
        *lefts, right = accumulate((num * cell[0] + 2 * _MARGIN for num in nums), initial=left)
        width = max(right, _MARGIN * 2 + text_width(title), 480)
        legend = self._legend_items()
        lines = _flow([_SWATCH + 6 + text_width(name + "  ") for _, name, _ in legend], width - 2 * _MARGIN)
        bottom = _TOP + cell[1] * len(self._rows) + _MARGIN
        canvas = Canvas(width, bottom + _LINE_HEIGHT * len(lines) + _MARGIN)
        canvas.text(_MARGIN, _MARGIN, title)
        self._draw_frames(canvas, lefts, cell)
        self._draw_rows(canvas, lefts, cell)
        for number, items in enumerate(lines):
            x, y = _MARGIN, bottom + number * _LINE_HEIGHT
            for item, item_width in items:
                _draw_item(canvas, x, y, *legend[item])
                x += item_width
        return canvas

    def _draw_frames(self, canvas: Canvas, lefts: list[int], cell: _CellSize) -> None:
        """A frame around each pool's blocks, with its name above."""
        first = self._rows[0][1]
        pools = [(name, len(pool.blocks)) for name, pool in _pools(first) if pool.blocks]
        for (name, num), left in zip(pools, lefts, strict=True):
            canvas.text(left, _MARGIN + _LINE_HEIGHT, f"{name}: {num} blocks of {first.block_size} tokens")
            canvas.fill(left - 1, _TOP - 1, num * cell[0] + 2, cell[1] * len(self._rows) + 2, CACHED)

    def _draw_rows(self, canvas: Canvas, lefts: list[int], cell: _CellSize) -> None:
        """The blocks after each step, and the numbers of some steps."""
        width, height = cell
        label_every = 10 * cdiv(cdiv(TEXT_HEIGHT + 10, height), 10)
        for row, (step, snapshot) in enumerate(self._rows):
            y = _TOP + row * height
            if row % label_every == 0:
                canvas.text(_MARGIN, y, str(step))
            pools = [pool for _, pool in _pools(snapshot) if pool.blocks]
            for pool, left in zip(pools, lefts, strict=True):
                for index, block in enumerate(pool.blocks):
                    self._draw_block(canvas, block, snapshot.block_size, (left + index * width, y, width, height))

    def _draw_block(
        self, canvas: Canvas, block: BlockSnapshot, block_size: int, cell: tuple[int, int, int, int]
    ) -> None:
        x, y, width, height = cell
        if not block.owners:
            canvas.fill(x, y, width, height, CACHED if block.state == "cached" else FREE)
            return
        color = self._color(block.request_ids[0])
        canvas.fill(x, y, width, height, _pale(color))
        canvas.fill(x, y, round(width * block.num_tokens / block_size), height, color)
        if len(block.owners) > 1 and width > 2:
            canvas.fill(x, y, width - 1, 1, BLACK)
        if width > 3:
            canvas.fill(x + width - 1, y, 1, height, WHITE)

    def _color(self, request_id: str) -> Color:
        # Steps of the golden ratio spread any number of hues; two lightnesses tell neighbours apart.
        number = self._owners[request_id]
        hue = number * 0.618034 % 1.0
        red, green, blue = colorsys.hls_to_rgb(hue, 0.42 if number % 2 else 0.55, 0.75)
        return round(255 * red), round(255 * green), round(255 * blue)

    def _legend_items(self) -> list[tuple[Color, str, bool]]:
        """(colour, name, marked as shared)"""
        items = []
        if len(self._owners) <= _MAX_LEGEND:
            items = [(self._color(request_id), request_id, False) for request_id in self._owners]
        return [*items, (FREE, "free", False), (CACHED, "cached", False), (WHITE, "black line: shared", True)]


def _pools(snapshot: MemorySnapshot) -> tuple[tuple[str, PoolSnapshot], ...]:
    return ("device", snapshot.device), ("host", snapshot.host)


def _fit(text: str, width: int) -> str:
    return text[:width].ljust(width)


def _blocks(snapshot: MemorySnapshot) -> list[BlockSnapshot]:
    return [*snapshot.device.blocks, *snapshot.host.blocks]


def _draw_item(canvas: Canvas, x: int, y: int, color: Color, name: str, is_marked: bool) -> None:
    """An entry of the legend."""
    canvas.fill(x, y - 1, _SWATCH, _SWATCH, CACHED)
    canvas.fill(x + 1, y, _SWATCH - 2, _SWATCH - 2, color)
    if is_marked:
        canvas.fill(x + 1, y, _SWATCH - 2, 2, BLACK)
    canvas.text(x + _SWATCH + 6, y, name)


def _pale(color: Color) -> Color:
    red, green, blue = (channel + (255 - channel) * 7 // 10 for channel in color)
    return red, green, blue


def _flow(widths: list[int], line_width: int) -> list[list[tuple[int, int]]]:
    """Break items of these widths into lines, each a list of (number, width)."""
    lines: list[list[tuple[int, int]]] = [[]]
    used = 0
    for number, width in enumerate(widths):
        if used + width > line_width and lines[-1]:
            lines.append([])
            used = 0
        lines[-1].append((number, width))
        used += width
    return lines
