"""The picture of distributions: its size, and that the curve is where the values are."""

from lullm.draw.distribution import LINE, draw_distributions


def has_line(canvas, left, right) -> bool:
    return any(bytes(LINE) in bytes(row[3 * left : 3 * right]) for row in canvas._rows)


def test_panels_two_in_a_row():
    one = draw_distributions({"a": [1, 2]}, "title", "ms")
    two = draw_distributions({"a": [1, 2], "b": [3]}, "title", "ms")
    three = draw_distributions({"a": [1, 2], "b": [3], "c": [4], "none": []}, "title", "ms")
    assert one.width == two.width == three.width and one.height == two.height < three.height
    assert has_line(one, 0, one.width // 2) and not has_line(one, one.width // 2, one.width)
    assert has_line(two, two.width // 2, two.width)
    assert two.encode().startswith(b"\x89PNG")


def test_the_curve_ends_at_all_values():
    canvas = draw_distributions({"a": [0.0, 0.0, 10.0]}, "t", "ms")
    columns = [x for x in range(canvas.width) if has_line(canvas, x, x + 1)]
    heights = {x: min(y for y, row in enumerate(canvas._rows) if bytes(row[3 * x : 3 * x + 3]) == bytes(LINE))
               for x in (columns[0], columns[-2])}  # fmt: skip
    assert heights[columns[0]] - heights[columns[-2]] == round(200 / 3), "two thirds lie at the beginning"
