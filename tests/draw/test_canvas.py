"""The canvas, read back from the PNG that it writes."""

from kit.png import read_png

from lullm.draw.canvas import Canvas


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
