"""What the pictures of a request would take, from their sizes alone, so that too much is refused before it is made."""

import math
from collections.abc import Callable, Sequence
from typing import assert_never

from lullm.config.vision.form import PictureForm
from lullm.errors import InvalidRequestError
from lullm.types.vision.grid import SquareGrid
from lullm.types.vision.tile import TileShape
from lullm.vision.picture import MAX_PIXELS
from lullm.vision.tiling import (
    corner_grid,
    cropped_size,
    fitting_grid,
    kept_size,
    nearest_grid,
    scanned_boxes,
    split_size,
)

MAX_TOTAL_PIXELS = 8 * MAX_PIXELS
"""Pixels of the pictures of one request, as they are sent. They are decoded one by one, so this bounds the time to some
seconds. A body of a hundred kilobytes can hold thousands of millions."""


def check_pictures(
    sizes: Sequence[tuple[int, int]],
    form: PictureForm,
    rows_of: Callable[[int, int, SquareGrid | None], int],
    most_rows: int,
) -> int:
    """Check pictures of these (width, height), which may still be turned, before they are decoded. Returns their rows.

    Args:
        rows_of: rows of the decoder for a tile of (height, width, grid).
        most_rows: of one prompt.

    Raises:
        InvalidRequestError: a step on the way to the tiles would be too large, or there would be too many rows.
    """
    num_pixels = sum(width * height for width, height in sizes)
    if num_pixels > MAX_TOTAL_PIXELS:
        raise InvalidRequestError(
            f"the pictures have {num_pixels} pixels together, and a request may have {MAX_TOTAL_PIXELS}; send smaller "
            "ones, or fewer"
        )
    num_rows = 0
    for width, height in sizes:
        shapes = [tile_shapes(*size, form) for size in {(width, height), (height, width)}]
        num_rows += min(sum(number * rows_of(*shape) for shape, number in one) for one in shapes)
    if num_rows > most_rows:
        raise too_many_rows("pictures", num_rows, most_rows)
    return num_rows


def too_many_rows(noun: str, num_rows: int, most_rows: int) -> InvalidRequestError:
    """The error for a prompt whose pictures, or frames, take too many tokens."""
    return InvalidRequestError(
        f"the prompt is too long: its {noun} alone take {num_rows} tokens, and this model's maximum context "
        f"length is {most_rows} tokens (max_model_len); send smaller {noun}, or fewer",
        code="context_length_exceeded",
    )


def tile_shapes(width: int, height: int, form: PictureForm) -> list[tuple[TileShape, int]]:
    """The (height, width, grid) of tiles that `tiled` makes, each with the number of such tiles.

    Raises InvalidRequestError: the picture is so long and thin that one on the way to the tiles would be too large.
    """
    if form.pads:
        width = height = max(width, height)
        _check_between(width, height)
    square, edge = (form.edge, form.edge, None), form.edge
    match form.fit:
        case "crop":
            _check_between(*cropped_size(width, height, form))
            return [(square, 1)]
        case "stretch":
            return [(square, 1)]
        case "scan":
            return [(square, len(scanned_boxes(width, height, form)))]
        case "split":
            columns, rows = (length // edge for length in split_size(width, height, form))
            return [(square, _with_whole(columns * rows))]
        case "grid":
            return [(square, _with_whole(math.prod(nearest_grid(width, height, form))))]
        case "area" | "volume" | "within" | "budget":
            new_width, new_height = kept_size(width, height, form)
            return [((new_height, new_width, None), 1)]
        case "anyres":
            grid = SquareGrid(*fitting_grid(width, height, form), width, height)
            return [(((1 + grid.num_lines * grid.num_columns) * edge, edge, grid), 1)]
        case "corner":
            grid = corner_grid(width, height, form)
            return [((grid.num_lines * edge, grid.num_columns * edge, grid), 1)]
        case _:
            assert_never(form.fit)


def _with_whole(num_tiles: int) -> int:
    """The tiles of a grid, with that of the whole picture behind them if there are several."""
    return num_tiles + (num_tiles > 1)


def _check_between(width: int, height: int) -> None:
    """Check a picture between the one that is sent and its tiles."""
    if width * height > MAX_PIXELS:
        raise InvalidRequestError(
            "a picture is too long for its width: this model's pictures are made squares, or their short edge is made "
            f"longer, and it would become {width} x {height} pixels; cut it"
        )
