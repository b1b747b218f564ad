"""From an RGB picture to tiles, as the image processors of transformers with Pillow make them, bit for bit."""

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lullm.config.vision.form import PictureForm
from lullm.errors import InvalidRequestError
from lullm.types.vision.grid import SquareGrid
from lullm.types.vision.tile import Tile
from lullm.vision.picture import pillow

if TYPE_CHECKING:
    from PIL.Image import Image

_LARGEST_EDGE = 4096
"""The largest edge of a picture before it is split."""
_LEAST_EDGE = 10
"""The least edge of what a grid of squares shows of a picture in its corner."""
_LARGEST_RATIO = 200
"""The largest ratio of the edges of a picture that keeps its shape."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """A picture's tiles: `num_rows` x `num_columns` of a grid, row by row, then one of the whole. 0 x 0: only that.

    With 'scan' the one of the whole is the first.
    """

    tiles: tuple[Tile, ...]
    num_rows: int = 0
    num_columns: int = 0


def tiled(image: "Image", form: PictureForm) -> Tiled:
    """The tiles of a picture. Raises InvalidRequestError: it is too long for its width, for a tile of its shape."""
    if form.pads:
        image = _squared(image, form)
    match form.fit:
        case "crop":
            return Tiled((_tile(_cropped(image, form)),))
        case "scan":
            return _scanned(image, form)
        case "within" | "area" | "volume" | "budget":
            return Tiled((_tile(resized(image, *kept_size(image.width, image.height, form), form)),))
        case "stretch":
            return Tiled((_tile(resized(image, form.edge, form.edge, form)),))
        case "split":
            return _split(resized(image, *_scaled_size(image.width, image.height, form.resize_edge), form), form)
        case "grid":
            return _spread(image, form)
        case "anyres":
            return Tiled((_mosaic(image, form),))
        case "corner":
            return Tiled((_cornered(image, form),))


def _tile(image: "Image") -> Tile:
    return Tile.of(image.height, image.width, image.tobytes())


def resized(image: "Image", width: int, height: int, form: PictureForm) -> "Image":
    """By the form's filter."""
    resampling: Any = form.resample
    return image.resize((width, height), resampling)


def _squared(image: "Image", form: PictureForm) -> "Image":
    """With borders of the mean color, so that both edges are the longer one."""
    width, height = image.size
    edge = max(width, height)
    color = tuple(int(mean * 255) for mean in form.image_mean)
    square: Image = pillow().new("RGB", (edge, edge), color)
    square.paste(image, ((edge - width) // 2, (edge - height) // 2))
    return square


def _cropped(image: "Image", form: PictureForm) -> "Image":
    """The middle, after the shorter edge has become `resize_edge`."""
    size = cropped_size(image.width, image.height, form)
    image = resized(image, *size, form)
    left, top = (size[0] - form.edge) // 2, (size[1] - form.edge) // 2
    return image.crop((left, top, left + form.edge, top + form.edge))


def cropped_size(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """(width, height) of what the middle is cut out of."""
    longer = int(form.resize_edge * max(width, height) / min(width, height))
    return (form.resize_edge, longer) if width <= height else (longer, form.resize_edge)


def _scaled_size(width: int, height: int, longest: int) -> tuple[int, int]:
    """(width, height) with this longer edge; the shorter one is even."""
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    ratio = width / height
    if width >= height and width > _LARGEST_EDGE:
        width, height = _LARGEST_EDGE, int(_LARGEST_EDGE / ratio)
    elif height > width and height > _LARGEST_EDGE:
        width, height = int(_LARGEST_EDGE * ratio), _LARGEST_EDGE
    return max(width, 1), max(height, 1)


def kept_size(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """(width, height) of the one tile of a picture that keeps its shape.

    Raises InvalidRequestError: it is too long for its width.
    """
    if form.fit == "volume":
        return size_of_frames(width, height, form.num_frames, form.num_frames, form)
    sizes = {"within": size_within, "area": whole_size, "budget": size_for_budget}
    return sizes[form.fit](width, height, form)


def size_for_budget(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """(width, height) of the one tile of a picture, for 'budget': rounded as in transformers."""
    edge, factor = form.edge, math.sqrt(form.max_pixels / (width * height))
    lines, columns = (math.floor(factor * length / edge) for length in (height, width))
    most = form.max_pixels // edge**2
    if not lines:  # of a strip so thin that its short edge vanishes
        lines, columns = 1, min(width // height, most)
    elif not columns:
        lines, columns = min(height // width, most), 1
    return columns * edge, lines * edge


def size_within(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """(width, height) of the one tile of a picture, for 'within'."""
    ratio = max(height / form.resize_edge, width / form.resize_edge)
    if ratio > 1:
        width, height = math.floor(width / ratio), math.floor(height / ratio)
    # A strip so thin that its short edge vanishes: one line of rows (transformers raises an error there).
    width, height = (math.ceil(max(length, 1) / form.edge) * form.edge for length in (width, height))
    return width, height


def _mosaic(image: "Image", form: PictureForm) -> Tile:
    """The whole as a square, then those of the grid that it is fitted into."""
    edge, (lines, columns) = form.edge, fitting_grid(image.width, image.height, form)
    width, height = columns * edge, lines * edge
    across, down = width / image.width, height / image.height
    if across < down:
        size = width, min(math.ceil(image.height * across), height)
    else:
        size = min(math.ceil(image.width * down), width), height
    fitted: Image = pillow().new("RGB", (width, height))
    fitted.paste(resized(image, *size, form), ((width - size[0]) // 2, (height - size[1]) // 2))
    squares = [resized(image, edge, edge, form)]
    squares += [
        fitted.crop((left, top, left + edge, top + edge))
        for top in range(0, height, edge)
        for left in range(0, width, edge)
    ]
    pixels = b"".join(square.tobytes() for square in squares)
    return Tile.of(len(squares) * edge, edge, pixels, SquareGrid(lines, columns, image.width, image.height))


def fitting_grid(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """(lines, columns), for 'anyres': where the picture keeps most of its pixels, of those the one of the fewest."""

    def of(grid: tuple[int, int]) -> tuple[int, int]:
        lines, columns = grid
        most_width, most_height = columns * form.edge, lines * form.edge
        scale = min(most_width / width, most_height / height)
        num_kept = min(int(width * scale) * int(height * scale), width * height)
        return num_kept, num_kept - most_width * most_height

    return max(form.grids, key=of)  # the first of several


def _cornered(image: "Image", form: PictureForm) -> Tile:
    grid = corner_grid(image.width, image.height, form)
    width, height = grid.num_columns * form.edge, grid.num_lines * form.edge
    fitted: Image = pillow().new("RGB", (width, height), (255, 255, 255))
    fitted.paste(resized(image, grid.width, grid.height, form), (0, 0))
    return Tile.of(height, width, fitted.tobytes(), grid)


def corner_grid(width: int, height: int, form: PictureForm) -> SquareGrid:
    """The squares that a picture needs as it is; if these are too many, those in the shape that is nearest to its own.

    Raises InvalidRequestError: it is too thin for them.
    """
    columns, lines = math.ceil(width / form.edge), math.ceil(height / form.edge)
    if columns * lines > form.max_tiles:
        columns, lines = nearest_grid(width, height, form)
    across, down = columns * form.edge / width, lines * form.edge / height
    size = (columns * form.edge, int(height * across)) if across < down else (int(width * down), lines * form.edge)
    if min(size) < _LEAST_EDGE:
        raise InvalidRequestError(
            f"a picture of {width} x {height} pixels is so thin that {min(size)} pixels would be left of its shorter "
            f"edge, and this model sees {_LEAST_EDGE} at least; cut it"
        )
    return SquareGrid(lines, columns, *size, is_cornered=True)


def _scanned(image: "Image", form: PictureForm) -> Tiled:
    """The whole, then its parts from left to right or from top to bottom, if it is long: Gemma 3's pan and scan."""
    boxes = scanned_boxes(*image.size, form)
    tiles = tuple(_tile(resized(image.crop(box), form.edge, form.edge, form)) for box in boxes)
    return Tiled(tiles, 1, len(boxes) - 1) if len(boxes) > 1 else Tiled(tiles)


def scanned_boxes(width: int, height: int, form: PictureForm) -> list[tuple[int, int, int, int]]:
    """(left, top, right, bottom) of the whole, then of its parts, for 'scan'."""
    long, short, num_parts = max(width, height), min(width, height), 0
    if form.splits and long / short >= form.min_ratio:
        num_parts = min(form.max_tiles, max(2, min(long // form.min_crop, math.floor(long / short + 0.5))))
        length = math.ceil(long / num_parts)
        if min(length, short) < form.min_crop:
            num_parts = 0
    boxes = [(0, 0, width, height)]
    for start in range(0, long, length) if num_parts else ():
        end = min(start + length, long)
        boxes.append((start, 0, end, height) if width >= height else (0, start, width, end))
    return boxes


def split_size(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """(width, height) of all tiles of a picture's grid, for 'split'."""
    return _grid_size(*_scaled_size(width, height, form.resize_edge), form)


def _grid_size(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """Both edges are the next multiples of the tiles'."""
    edge = form.edge
    if not form.splits:
        return edge, edge
    ratio = width / height
    if width >= height:
        width = math.ceil(width / edge) * edge
        height = math.ceil(int(width / ratio) / edge) * edge
    else:
        height = math.ceil(height / edge) * edge
        width = math.ceil(int(height * ratio) / edge) * edge
    # A strip so thin that its short edge vanishes: one row of tiles (transformers raises an error there).
    return max(width, edge), max(height, edge)


def _split(image: "Image", form: PictureForm) -> Tiled:
    image = resized(image, *_grid_size(*image.size, form), form)
    return _cut(image, image, form)


def _spread(image: "Image", form: PictureForm) -> Tiled:
    """Stretched to the grid whose shape is nearest to the picture's."""
    num_columns, num_rows = nearest_grid(image.width, image.height, form)
    return _cut(resized(image, num_columns * form.edge, num_rows * form.edge, form), image, form)


def nearest_grid(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """(columns, rows). Of grids with the same shape it is the largest of less than twice the picture's pixels."""
    ratio, best, least = width / height, (1, 1), math.inf
    for columns, rows in _grids(form.min_tiles, form.max_tiles):
        difference = abs(ratio - columns / rows)
        is_small = columns * rows * form.edge**2 < 2 * width * height
        if difference < least or difference == least and is_small:
            best, least = (columns, rows), difference
    return best


@functools.lru_cache(maxsize=8)
def _grids(least: int, most: int) -> tuple[tuple[int, int], ...]:
    """All (columns, rows) of so many tiles, the smaller ones first, of equal ones the narrower."""
    grids = ((columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1))
    return tuple(sorted((grid for grid in grids if math.prod(grid) >= least), key=math.prod))


def _cut(image: "Image", whole: "Image", form: PictureForm) -> Tiled:
    """The grid of an image, with a tile of `whole` behind it, unless the grid is a single tile."""
    edge = form.edge
    num_columns, num_rows = image.width // edge, image.height // edge
    if num_columns == num_rows == 1:
        return Tiled((_tile(image),))
    grid = [
        _tile(image.crop((left, top, left + edge, top + edge)))
        for top in range(0, image.height, edge)
        for left in range(0, image.width, edge)
    ]
    return Tiled((*grid, _tile(resized(whole, edge, edge, form))), num_rows, num_columns)


def whole_size(width: int, height: int, form: PictureForm) -> tuple[int, int]:
    """(width, height) of the one tile of a picture: the nearest multiples of `edge`, within the bounds of pixels.

    A picture outside of them is scaled first, and the multiples are those below or above. Very thin ones may stay
    outside, since no edge is 0.
    """
    edge = form.edge
    if form.widens and height < edge:
        width, height = round(width * edge / height), edge
    if form.widens and width < edge:
        width, height = edge, round(height * edge / width)
    check_ratio(width, height)
    near = round(width / edge) * edge, round(height / edge) * edge
    if near[0] * near[1] > form.max_pixels:
        scale = math.sqrt(width * height / form.max_pixels)
        return (
            max(edge, math.floor(width / scale / edge) * edge),
            max(edge, math.floor(height / scale / edge) * edge),
        )
    if near[0] * near[1] < form.min_pixels:
        scale = math.sqrt(form.min_pixels / (width * height))
        return math.ceil(width * scale / edge) * edge, math.ceil(height * scale / edge) * edge
    return near


def size_of_frames(width: int, height: int, num_frames: int, num_at_once: int, form: PictureForm) -> tuple[int, int]:
    """(width, height) of `num_frames` pictures of a film, each as `whole_size`, but their pixels count together.

    `num_at_once`: the size before it is scaled is compared for whole groups of so many.
    """
    edge = form.edge
    if min(width, height) < edge:
        scale = max(edge / height, edge / width)
        width, height = int(width * scale), int(height * scale)
    check_ratio(width, height)
    near = round(width / edge) * edge, round(height / edge) * edge
    num_pixels = round(num_frames / num_at_once) * num_at_once * math.prod(near)
    if num_pixels > form.max_pixels:
        scale = math.sqrt(num_frames * height * width / form.max_pixels)
        return (
            max(edge, math.floor(width / scale / edge) * edge),
            max(edge, math.floor(height / scale / edge) * edge),
        )
    if num_pixels < form.min_pixels:
        scale = math.sqrt(form.min_pixels / (num_frames * height * width))
        return math.ceil(width * scale / edge) * edge, math.ceil(height * scale / edge) * edge
    return near


def check_ratio(width: int, height: int) -> None:
    """Raises InvalidRequestError: a picture is too long for its width, for a tile of its shape."""
    if max(width, height) > _LARGEST_RATIO * min(width, height):
        raise InvalidRequestError(
            f"a picture of {width} x {height} pixels is more than {_LARGEST_RATIO} times as long as it is wide; cut it"
        )
