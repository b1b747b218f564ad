"""Film: frames that can be read, and what is known of their time. From what a caller gives, or from a file's bytes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lullm.errors import InvalidRequestError
from lullm.vision.container import MOST_DECODED, Container, container_of, moving
from lullm.vision.picture import as_picture, decoded, encoded_size, size_of
from lullm.vision.source import PICTURE, VIDEO, MediaSource, from_base64

if TYPE_CHECKING:
    from PIL.Image import Image

_JPEGS = "data:video/jpeg;base64,"
MOST_FRAMES = 1 << 16
"""Frames of one video that is given frame by frame."""
_MOST_URLS = 999
_LEAST_FPS, _MOST_FPS = 1e-6, 1e6
_MOST_PLACES = 1 << 40
_KNOWN = ("fps", "frames_indices", "total_num_frames")
_OTHERS = ("duration", "width", "height", "video_backend", "do_sample_frames")
"""Keys of metadata that say nothing that is not known otherwise, as vLLM's loaders give them."""


@dataclass(frozen=True, slots=True)
class Film:
    """Frames of one size.

    Args:
        read: the RGB pictures of frames by their ascending numbers, one after the other; fewer, if a file ends earlier.
        num_frames: that can be read. width, height: of each, in pixels.
        fps: of the whole video that they are from; None: not known.
        places: their numbers in it. total: frames that it has.
        is_file: nobody has chosen these frames.
    """

    read: Callable[[Sequence[int]], Iterable["Image"]]
    num_frames: int
    width: int
    height: int
    fps: float | None
    places: Sequence[int]
    total: int
    is_file: bool

    @property
    def own_fps(self) -> float | None:
        """The rate of the frames that can be read."""
        return None if self.fps is None else self.num_frames / self.total * self.fps


def fetched(given: Any, source: MediaSource) -> Any:
    """What `film_of` takes, for a URL of a video, or a list of URLs of frames. Blocks on the disk and on the network.

    Raises InvalidRequestError: see `MediaSource.read`.
    """
    if isinstance(given, str):
        if given[: len(_JPEGS)].lower() == _JPEGS:
            return [from_base64(part, VIDEO) for part in given[len(_JPEGS) :].split(",", MOST_FRAMES)]
        return source.read(given, VIDEO)
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, str) for one in given):
        if len(given) > _MOST_URLS:
            raise InvalidRequestError(f"a video has more than {_MOST_URLS} URLs of frames; leave some out")
        return [source.read(url, PICTURE) for url in given]
    return given


def film_of(given: Any) -> Film:
    """The film of a file's bytes, of frames (an array `[F, H, W, 3]` or `[F, 3, H, W]` of bytes, a list of pictures or
    of their files' bytes), or of a pair of frames and their metadata.

    Raises:
        InvalidRequestError: it is something else, broken, or too large.
        UnsupportedError: Pillow is not installed, or PyAV for a file that needs it.
    """
    if isinstance(given, bytes):
        return _of_file(given)
    if isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[1], Mapping):
        return _of_frames(given[0], given[1])
    return _of_frames(given, {})


def _of_file(data: bytes) -> Film:
    """The film of a file's bytes: moving pictures by Pillow, all others by PyAV."""
    container: Container = moving(data) or container_of(data)
    places = range(container.num_frames)
    size = container.width, container.height
    return Film(container.read, len(places), *size, _fps(container.fps), places, len(places), is_file=True)


def _of_frames(given: Any, metadata: Mapping[str, Any]) -> Film:
    if isinstance(given, (list, tuple)):
        frames: Any = given
    elif len(getattr(given, "shape", ())) == 4:
        frames = given if isinstance(given, np.ndarray) else np.asarray(given)
    else:
        raise InvalidRequestError(
            "a video is an array of bytes [frames, height, width, 3], a list of pictures, or a pair of one of these "
            f"and its metadata, not {type(given).__name__}"
        )
    if not len(frames):
        raise InvalidRequestError("a video has no frames")
    if len(frames) > MOST_FRAMES:
        raise InvalidRequestError(f"a video has more than {MOST_FRAMES} frames; leave some out")
    sizes = {encoded_size(frame) if isinstance(frame, bytes) else size_of(frame) for frame in frames}
    if len(sizes) > 1:
        raise InvalidRequestError("the frames of a video differ in size")
    [(width, height)] = sizes
    if width * height * len(frames) > MOST_DECODED:
        raise InvalidRequestError(f"the frames of a video have more than {MOST_DECODED} pixels together")

    def read(numbers: Sequence[int]) -> Iterator["Image"]:
        for number in numbers:
            frame = frames[number]
            yield decoded(frame) if isinstance(frame, bytes) else as_picture(frame)

    places, total = _places(metadata, len(frames))
    return Film(read, len(frames), width, height, _fps(metadata.get("fps")), places, total, is_file=False)


def _fps(value: Any) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not is_number or not _LEAST_FPS <= value <= _MOST_FPS or not math.isfinite(value):
        raise InvalidRequestError(f"the fps of a video is a number above 0, not {value!r:.40}")
    return float(value)


def _places(metadata: Mapping[str, Any], num_frames: int) -> tuple[Sequence[int], int]:
    """(the numbers of frames in the whole video, how many it has)."""
    if unknown := [str(key) for key in metadata if key not in _KNOWN + _OTHERS]:
        raise InvalidRequestError(
            f"the metadata of a video hold {', '.join(_KNOWN)}, not {', '.join(sorted(unknown))[:200]}"
        )
    indices, total = metadata.get("frames_indices"), metadata.get("total_num_frames")
    places: Sequence[int] = range(num_frames)
    if indices is not None:
        listed = indices.tolist() if hasattr(indices, "tolist") else list(indices) if _is_list(indices) else None
        if listed is None or not all(type(place) is int and 0 <= place < _MOST_PLACES for place in listed):
            raise InvalidRequestError("frames_indices of a video are a list of numbers of frames")
        if len(listed) != num_frames:
            raise InvalidRequestError(
                f"a video has {num_frames} frames, and frames_indices {len(listed)} numbers; give one for each"
            )
        places = listed
    if total is None:
        total = max(places) + 1
    if not isinstance(total, (int, np.integer)) or isinstance(total, bool) or not num_frames <= total <= _MOST_PLACES:
        raise InvalidRequestError(f"total_num_frames of a video is at least its {num_frames} frames, not {total!r:.40}")
    return places, int(total)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple, range))
