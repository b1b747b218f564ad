"""Cumulative distributions as a PNG: for each quantity, the share of its values below each value."""

import bisect
from collections.abc import Mapping, Sequence

from lullm.draw.canvas import BLACK, TEXT_HEIGHT, Canvas, Color, text_width

LINE: Color = (47, 98, 153)
GRID: Color = (225, 225, 225)
_MARGIN, _WIDTH, _HEIGHT = 24, 380, 200
_LEVELS = (0, 50, 90, 100)


def draw_distributions(values: Mapping[str, Sequence[float]], title: str, unit: str) -> Canvas:
    """Panels, two in a row; `values` by the panels' titles. The axis ends at the largest value."""
    shown = {name: sorted(numbers) for name, numbers in values.items() if numbers}
    top = _MARGIN + TEXT_HEIGHT + 16
    cell = _HEIGHT + 3 * TEXT_HEIGHT + 28
    height = top + cell * ((len(shown) + 1) // 2)
    width = max(2 * (_WIDTH + 3 * _MARGIN) + _MARGIN, 2 * _MARGIN + text_width(title))
    canvas = Canvas(width, height + _MARGIN)
    canvas.text(_MARGIN, _MARGIN, title)
    for number, (name, numbers) in enumerate(shown.items()):
        left = _MARGIN + (number % 2) * (_WIDTH + 3 * _MARGIN) + text_width("100 ")
        _panel(canvas, left, top + cell * (number // 2), name, numbers, unit)
    return canvas


def _panel(canvas: Canvas, left: int, top: int, name: str, numbers: Sequence[float], unit: str) -> None:
    canvas.text(left, top, name)
    bottom = top + TEXT_HEIGHT + 8 + _HEIGHT
    for level in _LEVELS:
        y = bottom - round(level / 100 * _HEIGHT)
        canvas.fill(left, y, _WIDTH, 1, GRID)
        canvas.text(left - text_width(f"{level} "), y - TEXT_HEIGHT // 2, str(level))
    longest, y_before = numbers[-1] or 1.0, bottom
    for column in range(_WIDTH):
        share = bisect.bisect_right(numbers, longest * (column + 1) / _WIDTH) / len(numbers)
        y = bottom - round(share * _HEIGHT)
        canvas.fill(left + column, y, 2, max(y_before - y, 2), LINE)
        y_before = y
    canvas.fill(left, top + TEXT_HEIGHT + 8, 1, _HEIGHT, BLACK)
    canvas.fill(left, bottom, _WIDTH, 1, BLACK)
    canvas.text(left, bottom + 8, "0")
    end = f"{longest:.0f} {unit}" if longest >= 100 else f"{longest:.3g} {unit}"
    canvas.text(left + _WIDTH - text_width(end), bottom + 8, end)
