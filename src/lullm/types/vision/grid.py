"""SquareGrid: a picture that was fitted into a grid of squares, and which of their rows show it, not its borders."""

import math

import msgspec


class SquareGrid(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`num_lines` x `num_columns` squares, in whose middle a picture of `width` x `height` pixels stands, enlarged or
    made smaller until it fills them one way. Borders fill the rest.

    `is_cornered`: it stands in the upper left corner, and these are its pixels there.
    """

    num_lines: int
    num_columns: int
    width: int
    height: int
    is_cornered: bool = False

    def kept(self, num_sides: int) -> tuple[range, range]:
        """The (lines, columns) of rows that show the picture, if a square has `num_sides` x `num_sides` of them."""
        lines, columns = self.num_lines * num_sides, self.num_columns * num_sides
        if self.width / self.height > columns / lines:
            cut = (lines - int(round(self.height * (columns / self.width), 7))) // 2
            return range(cut, lines - cut), range(columns)
        cut = (columns - int(round(self.width * (lines / self.height), 7))) // 2
        return range(lines), range(cut, columns - cut)

    def seen(self, edge: int, num_sides: int) -> tuple[int, int]:
        """(lines, columns) of patches that show some of a picture in the corner. A square has an edge of `edge` pixels,
        and `num_sides` x `num_sides` patches.
        """
        patch = edge // num_sides
        lines, columns = self.num_lines * num_sides, self.num_columns * num_sides
        return lines - (self.num_lines * edge - self.height) // patch, columns - (
            self.num_columns * edge - self.width
        ) // patch

    def packed(self, num_sides: int, max_squares: int = 0) -> tuple[int, int]:
        """(lines, columns) of rows in a prompt: the kept ones, or fewer of them if they are more than 1.1 times as many
        on an edge as in `max_squares` squares; 0: no bound.
        """
        lines, columns = map(len, self.kept(num_sides))
        ratio = math.sqrt(lines * columns / (max_squares * num_sides**2)) if max_squares else 0.0
        return (max(int(lines // ratio), 1), max(int(columns // ratio), 1)) if ratio > 1.1 else (lines, columns)
