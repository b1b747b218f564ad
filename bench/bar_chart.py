"""Bars in groups, drawn with the package's own canvas: each bar as long as its value by the first one of its group."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
from lullm.draw.canvas import BLACK, TEXT_HEIGHT, Canvas, Color, text_width  # noqa: E402

COLORS: tuple[Color, ...] = ((31, 119, 180), (255, 127, 14), (44, 160, 44), (148, 103, 189), (140, 86, 75))
GRID: Color = (225, 225, 225)
_MARGIN, _BAR, _GAP = 16, 14, 14


def draw_bars(groups: dict[str, dict[str, float]], names: list[str], title: str, width: int = 960) -> Canvas:
    """A picture. `groups`: label -> {name: value}; a name without a value in a group has no bar there."""
    groups = {label: values for label, values in groups.items() if names[0] in values}
    ratios = {label: {n: value / values[names[0]] for n, value in values.items()} for label, values in groups.items()}
    left = _MARGIN + max(text_width(label) for label in groups) + 12
    longest = max(max(values.values()) for values in ratios.values())
    scale = (width - left - _MARGIN - text_width("0.00  123456.0")) / longest
    top = _MARGIN + 2 * (TEXT_HEIGHT + 12)
    height = top + sum(_BAR * len(values) + _GAP for values in groups.values()) + _MARGIN
    canvas = Canvas(width, height)
    canvas.text(_MARGIN, _MARGIN, title)
    x = _MARGIN
    for name, color in zip(names, COLORS, strict=False):
        canvas.fill(x, _MARGIN + TEXT_HEIGHT + 10, 12, 12, color)
        canvas.text(x + 18, _MARGIN + TEXT_HEIGHT + 11, name)
        x += 18 + text_width(name + "   ")
    for tenth in range(0, int(longest * 10) + 1, 5):
        canvas.fill(left + round(tenth / 10 * scale), top - 6, 1, height - top - _MARGIN + 6, GRID)
    y = top
    for label, values in groups.items():
        canvas.text(_MARGIN, y + (_BAR * len(values) - TEXT_HEIGHT) // 2, label)
        for name in (n for n in names if n in values):
            ratio = ratios[label][name]
            canvas.fill(left, y, max(1, round(ratio * scale)), _BAR - 2, COLORS[names.index(name) % len(COLORS)])
            canvas.text(left + round(ratio * scale) + 6, y + 1, f"{ratio:.2f}  {values[name]:.1f}")
            y += _BAR
        y += _GAP
    canvas.fill(left, top - 6, 1, height - top - _MARGIN + 6, BLACK)
    return canvas
