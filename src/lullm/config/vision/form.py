"""PictureForm: from a picture to the pixels of its tiles."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lullm.types.vision.grid import SquareGrid

Fit = Literal["crop", "stretch", "split", "grid", "area", "volume", "scan", "within", "anyres", "budget", "corner"]


@dataclass(frozen=True, slots=True)
class PictureForm:
    """From a picture to the pixels of its tiles.

    Args:
        edge: of a tile, in pixels; where a tile has its picture's shape, the number that divides both edges of it.
        fit: 'crop': the shorter edge becomes `resize_edge`, and the middle is cut out; 'stretch': to one tile, whatever
            the shape; 'split': the longer edge becomes `resize_edge`, then both the next multiples of `edge`. The
            picture becomes a grid of tiles, with a small copy of the whole behind them; one of a single tile has no
            copy; 'grid': it is stretched to a grid of tiles, `min_tiles` to `max_tiles` of them in the shape that is
            nearest to its own, with the same copy; 'area': it becomes one tile of nearly its own shape, of `min_pixels`
            to `max_pixels`; 'volume': the same, of the picture repeated `num_frames` times; 'scan': one tile, and if it
            is at least `min_ratio` times as long as it is wide, its parts side by side follow, at most `max_tiles`,
            each at least `min_crop` pixels wide and high; 'within': one tile of nearly its own shape, which is made
            smaller if an edge is above `resize_edge`; then both edges become the next multiples of `edge`; 'anyres': it
            is fitted, with black borders, into one of `grids`, where it keeps the most pixels. A square of the whole
            comes before the grid's; all are one tile; 'budget': it becomes one tile of nearly its own shape, the
            largest one of at most `max_pixels`; 'corner': it is fitted into the upper left corner of a grid of at most
            `max_tiles` squares, as many as its pixels need, if they are no more. White fills the rest; all are one
            tile.
        splits: with 'split': False: a picture is resized in the same two steps, but to one tile; with 'scan': False: it
            has no parts.
        pads: pictures first become squares, with borders of the mean color.
        resample: Pillow's number of the filter.
        rescale_factor, image_mean, image_std: a value v of a channel becomes (v * factor - mean) / std.
        widens: with 'area': of a picture that is less than `edge` high or wide, this edge first becomes `edge`.
        grids: (lines, columns) of squares.
        stated: the keys of the image processor that it was read from.
    """

    edge: int
    fit: Fit
    resize_edge: int
    splits: bool
    pads: bool
    resample: int
    rescale_factor: float
    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]
    min_tiles: int = 1
    max_tiles: int = 1
    min_pixels: int = 0
    max_pixels: int = 0
    min_crop: int = 0
    min_ratio: float = 0.0
    num_frames: int = 1
    widens: bool = False
    grids: tuple[tuple[int, int], ...] = ()
    stated: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def keeps_shape(self) -> bool:
        """A tile has nearly the shape of its picture."""
        return self.fit in ("area", "volume", "within", "budget")

    def largest(self, most_pixels: int) -> tuple[int, int]:
        """(height, width) of the largest tile; where it has a picture's shape, about that of at most so many pixels."""
        if not self.keeps_shape:
            grid = self.largest_grid
            if grid is not None and grid.is_cornered:
                return grid.num_lines * self.edge, grid.num_columns * self.edge
            return (1 if grid is None else 1 + grid.num_lines * grid.num_columns) * self.edge, self.edge
        most = self.max_pixels // self.num_frames
        if self.fit == "within":
            most = (-(-self.resize_edge // self.edge) * self.edge) ** 2
        edge = max(math.isqrt(min(most, most_pixels)) // self.edge, 1) * self.edge
        return edge, edge

    @property
    def largest_grid(self) -> SquareGrid | None:
        """With 'anyres' and 'corner': the grid of a tile that a picture fills."""
        if self.fit == "corner":
            return SquareGrid(1, self.max_tiles, self.max_tiles * self.edge, self.edge, is_cornered=True)
        if not self.grids:
            return None
        lines, columns = max(self.grids, key=math.prod)
        return SquareGrid(lines, columns, columns, lines)
