"""Three positions for each token of a step that shows pictures, for models with planes of positions."""

from collections.abc import Sequence

import numpy as np

from lullm.types.vision.tile import TileRows


def plane_positions(positions: np.ndarray, tiles: Sequence[tuple[int, int, TileRows]]) -> np.ndarray:
    """The positions `[3, T]` of a batch: where a picture begins, plus its time in a video, its line, and its column.

    Args:
        positions: `[T]`, those of a text that goes on as each span begins.
        tiles: (first row of the span, row behind the span, rows of a picture), in the order of the batch.
    """
    planes = np.repeat(positions[None], 3, axis=0)
    for first_row, end_row, tile in tiles:
        row, geometry = first_row + tile.row, tile.geometry
        end = row + tile.num_rows
        begin = planes[0, row] - tile.first
        places = np.arange(tile.first, tile.first + tile.num_rows)
        planes[0, row:end] = begin + geometry.time
        planes[1, row:end] = begin + places // geometry.num_columns
        planes[2, row:end] = begin + places % geometry.num_columns
        # A tile that ends later has no tokens behind it in this span.
        planes[:, end:end_row] += geometry.shift_behind(tile.first + tile.num_rows)
    return planes
