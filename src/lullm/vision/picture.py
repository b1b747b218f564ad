"""From bytes, arrays and Pillow's objects to RGB pictures. Pillow is loaded at the first picture."""

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lullm.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 1 << 26
"""The pixels of one picture: 67 million, which take 200 MB as RGB. A file of some kilobytes can claim billions."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""The formats that are decoded; others of Pillow's have parsers that few have tested against hostile files."""


def pillow() -> Any:
    """Pillow's module `Image`. Raises UnsupportedError: it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError("pictures need Pillow: pip install 'lullm[vision]', or pip install pillow") from None
    return Image


def decoded(data: bytes) -> "Image":
    """The RGB picture of a file's bytes, turned as its EXIF says. Raises InvalidRequestError."""
    with opened(data) as image:
        from PIL import ImageOps

        return _rgb(ImageOps.exif_transpose(image))


def encoded_size(data: bytes) -> tuple[int, int]:
    """(width, height) that a file's first bytes say, before it is turned. Raises InvalidRequestError."""
    with opened(data) as image:
        size: tuple[int, int] = image.size
        return size


@contextlib.contextmanager
def opened(data: bytes) -> Iterator[Any]:
    """A file as one of Pillow's, of which the head is read. Errors of the block, too, become InvalidRequestErrors."""
    images = pillow()
    try:
        with images.open(io.BytesIO(data), formats=_FORMATS) as image:
            check_size(*image.size)
            yield image
    except InvalidRequestError:
        raise
    except (images.DecompressionBombError, images.DecompressionBombWarning):
        raise InvalidRequestError(f"a picture has more than {MAX_PIXELS} pixels") from None
    except images.UnidentifiedImageError:
        raise InvalidRequestError(f"a picture is not {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}") from None
    except Exception as error:  # parsers of broken files raise SyntaxError, struct.error, EOFError, ...
        raise InvalidRequestError(f"a picture cannot be decoded: {error}") from None


def size_of(given: Any) -> tuple[int, int]:
    """(width, height) of what `as_picture` takes; (1, 1) of what it refuses."""
    if isinstance(given, pillow().Image):
        return max(given.width, 1), max(given.height, 1)
    shape: tuple[Any, ...] = tuple(getattr(given, "shape", ()))
    if len(shape) == 3 and shape[2] not in (1, 3, 4) and shape[0] in (1, 3, 4):
        shape = shape[1:]
    return (max(int(shape[1]), 1), max(int(shape[0]), 1)) if len(shape) in (2, 3) else (1, 1)


def as_picture(given: Any) -> "Image":
    """The RGB picture of one of Pillow's, or of an array or tensor of bytes `[H, W, 3]`, `[3, H, W]` or `[H, W]`.

    Raises InvalidRequestError: it is something else, or too large.
    """
    images = pillow()
    if isinstance(given, images.Image):
        check_size(*given.size)
        try:
            return _rgb(given)
        except (OSError, ValueError, SyntaxError) as error:  # a file that is read now
            raise InvalidRequestError(f"a picture cannot be decoded: {error}") from None
    if not hasattr(given, "__array__"):
        raise InvalidRequestError(f"a picture is an image of Pillow, or an array of bytes, not {type(given).__name__}")
    array = np.asarray(given)
    if array.dtype != np.uint8:
        raise InvalidRequestError(f"an array of a picture has bytes (uint8) from 0 to 255, not {array.dtype}")
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or 0 in array.shape:
        raise InvalidRequestError(f"an array of a picture is [H, W, 3], [3, H, W] or [H, W], not {array.shape}")
    check_size(array.shape[1], array.shape[0])
    return _rgb(images.fromarray(np.ascontiguousarray(array)))


def check_size(width: int, height: int) -> None:
    """Raises InvalidRequestError: a picture has too many pixels, or none."""
    if width * height > MAX_PIXELS:
        raise InvalidRequestError(f"a picture of {width} x {height} pixels is above {MAX_PIXELS} pixels")
    if not width or not height:
        raise InvalidRequestError("a picture has no pixels")


def _rgb(image: Any) -> "Image":
    """Without transparency: its colors are taken as they are, as transformers takes them."""
    converted: Image = image.convert("RGB")
    return converted
