"""Videos in files: MP4, MOV, Matroska, WebM and AVI, decoded by PyAV, which is optional and loaded at the first one."""

import importlib
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lullm.errors import InvalidRequestError, UnsupportedError
from lullm.vision.picture import check_size, opened, pillow

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_DECODED = 1 << 35
"""Pixels of the videos of a request: of all frames up to the last one that is read. Nine minutes of 1920 x 1080 have as
many. Frames are decoded from the first one on, one at a time, so this bounds time and no memory."""
_MOVING = (b"GIF8", b"RIFF", b"\x89PNG")
_MP4 = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")


@dataclass(frozen=True, slots=True)
class Container:
    """Frames in a file. `read`: see `Film`. `fps`: None: the file does not say it."""

    read: Callable[[Sequence[int]], Iterable["Image"]]
    num_frames: int
    width: int
    height: int
    fps: float | None


def moving(data: bytes) -> Container | None:
    """The container of moving pictures, read by Pillow; None: it is another file. Decodes all of them once, for their
    times.

    Raises InvalidRequestError: it is broken, or has too many pixels.
    """
    if not data.startswith(_MOVING) or data[8:12] == b"AVI ":
        return None
    with opened(data) as image:
        num_frames, (width, height), milliseconds = getattr(image, "n_frames", 1), image.size, 0.0
        if width * height * num_frames > MOST_DECODED:
            raise InvalidRequestError(f"the frames of a video have more than {MOST_DECODED} pixels together")
        for number in range(num_frames):
            image.seek(number)
            image.load()
            milliseconds += float(image.info.get("duration", 0))

    def read(numbers: Sequence[int]) -> Iterator["Image"]:
        with opened(data) as image:
            for number in numbers:
                image.seek(number)
                yield image.convert("RGB")

    return Container(read, num_frames, width, height, num_frames / milliseconds * 1000 if milliseconds else None)


def container_of(data: bytes) -> Container:
    """The container of a file's bytes. Reads all packets of a file that does not say how many frames it has.

    Raises:
        InvalidRequestError: it is broken, of another kind, or has too many pixels.
        UnsupportedError: PyAV is not installed.
    """
    kind = _kind(data)
    with _opened(data, kind) as file:
        stream = _stream(file)
        width, height = stream.codec_context.width, stream.codec_context.height
        check_size(width, height)
        rate = stream.average_rate or stream.guessed_rate
        turns = _turns(next(file.decode(stream), None))
    num_frames = stream.frames or _count(data, kind)
    if num_frames < 1:
        raise InvalidRequestError("a video has no frames")
    if turns % 2:
        width, height = height, width

    def read(numbers: Sequence[int]) -> Iterator["Image"]:
        wanted = set(numbers)
        with _opened(data, kind) as file:
            for number, frame in enumerate(file.decode(_stream(file))):
                if number in wanted:
                    yield _picture(frame, turns)
                if number >= numbers[-1]:
                    return

    return Container(read, num_frames, width, height, float(rate) if rate else None)


def _kind(data: bytes) -> str:
    """FFmpeg's word. It is never left to guess: playlists would have it open other files and addresses."""
    if data[4:8] in _MP4:
        return "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    raise InvalidRequestError("a video is no MP4, MOV, Matroska, WebM, AVI, and no moving GIF, WEBP or PNG")


def _pyav() -> Any:
    try:
        return importlib.import_module("av")
    except ImportError:
        raise UnsupportedError(
            "files with videos need PyAV: pip install 'lullm[video]', or pip install av; or send the frames: as GIF, "
            "as data:video/jpeg;base64,FRAME,FRAME,..., or in Python as an array"
        ) from None


class _opened:
    """A file in PyAV. Errors of the block, too, become InvalidRequestErrors."""

    def __init__(self, data: bytes, kind: str):
        self._av = _pyav()
        self._arguments = io.BytesIO(data), kind
        self._file: Any = None

    def __enter__(self) -> Any:
        file, kind = self._arguments
        try:
            # An empty list of protocols: a file that names others cannot have them opened.
            self._file = self._av.open(
                file, format=kind, options={"protocol_whitelist": "none"}, metadata_errors="replace"
            )
        except Exception as error:
            raise _broken(error) from None
        return self._file

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._file.close()
        if isinstance(error, Exception) and not isinstance(error, InvalidRequestError):
            raise _broken(error) from None


def _broken(error: Exception) -> InvalidRequestError:
    return InvalidRequestError(f"a video cannot be decoded: {getattr(error, 'strerror', None) or error}")


def _stream(file: Any) -> Any:
    if not file.streams.video:
        raise InvalidRequestError("a file of a video has no pictures")
    return file.streams.video[0]


def _count(data: bytes, kind: str) -> int:
    """Packets with frames."""
    with _opened(data, kind) as file:
        return sum(packet.size > 0 for packet in file.demux(_stream(file)))


def _turns(frame: Any) -> int:
    """Quarter turns, counterclockwise, that a phone's video asks for."""
    if frame is None:
        raise InvalidRequestError("a video has no frames")
    return round(getattr(frame, "rotation", 0) / 90) % 4


def _picture(frame: Any, turns: int) -> "Image":
    images = pillow()
    image: Image = images.fromarray(frame.to_ndarray(format="rgb24"))
    if not turns:
        return image
    way = (images.Transpose.ROTATE_90, images.Transpose.ROTATE_180, images.Transpose.ROTATE_270)[turns - 1]
    return image.transpose(way)
