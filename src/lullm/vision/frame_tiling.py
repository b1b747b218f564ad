"""From the frames of a video to tiles, as the video processors of transformers group them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lullm.config.vision.form import PictureForm
from lullm.config.vision.video import VideoForm
from lullm.config.vision.video_reading import DEFAULT_FPS
from lullm.errors import InvalidRequestError
from lullm.types.vision.tile import Tile
from lullm.vision.film import Film
from lullm.vision.sampling import UNKNOWN_FPS, sampled
from lullm.vision.tiling import resized, size_of_frames, whole_size

_CAPPED = 1.05
"""Frames have at least so many times the fewest pixels, however many there are."""
_SHARE = 0.9
"""The share of `max_tokens` that all frames together may take with Qwen2-VL."""


@dataclass(frozen=True, slots=True)
class Reel:
    """What is to be read of a film.

    Args:
        numbers: of its frames. width, height: of each, once it is part of a tile.
        places: their numbers in the whole video, whole groups of them.
        fps: of the whole video. sampled_fps: of the frames that are read.
    """

    film: Film
    numbers: Sequence[int]
    width: int
    height: int
    places: Sequence[int]
    fps: float
    sampled_fps: float

    @property
    def num_decoded(self) -> int:
        """Pixels of the frames that are decoded on the way to the last one."""
        return self.film.width * self.film.height * (self.numbers[-1] + 1)


@dataclass(frozen=True, slots=True)
class Filmed:
    """The tiles of a video. `seconds`: of the first and the last frame of each. `interval_s`: between two tiles;
    `nominal_s`: if a second has the frames that the form asks for.
    """

    tiles: tuple[Tile, ...]
    seconds: tuple[tuple[float, float], ...]
    interval_s: float
    nominal_s: float


def wound(film: Film, form: VideoForm) -> Reel:
    """What is read of a film, before a frame is decoded. Raises InvalidRequestError: see `sampled` and `whole_size`."""
    numbers: Sequence[int] = range(film.num_frames)
    if film.is_file if form.samples is None else form.samples:
        numbers = sampled(film.num_frames, film.own_fps, form, film.is_file)
    width, height = frame_size(film.width, film.height, len(numbers), form)
    numbers = list(dict.fromkeys(numbers))
    places = [film.places[number] for number in numbers]
    places += places[-1:] * (-len(places) % form.num_at_once)
    fps = film.fps or UNKNOWN_FPS
    sampled_fps = len(numbers) / film.total * fps if film.fps else UNKNOWN_FPS
    return Reel(film, numbers, width, height, places, fps, sampled_fps)


def developed(reel: Reel, form: VideoForm) -> Filmed:
    """The tiles of a video. Decodes all its frames, which may take seconds.

    Raises InvalidRequestError: it is broken.
    """
    group, frames = form.num_at_once, []
    for image in reel.film.read(reel.numbers):
        frames.append(resized(image, reel.width, reel.height, form.frame).tobytes())
    if not frames:
        raise InvalidRequestError("a video cannot be decoded: it has none of the frames that it says it has")
    frames += frames[-1:] * (-len(frames) % group)
    starts = range(0, len(frames), group)
    tiles = (
        Tile.of(reel.height, reel.width, b"".join(frames[start : start + group]), num_frames=group) for start in starts
    )
    seconds = ((reel.places[start] / reel.fps, reel.places[start + group - 1] / reel.fps) for start in starts)
    return Filmed(tuple(tiles), tuple(seconds), group / reel.sampled_fps, group / (form.fps or DEFAULT_FPS))


def frame_size(width: int, height: int, num_frames: int, form: VideoForm) -> tuple[int, int]:
    """(width, height) of frames, of which `num_frames` are read.

    Raises InvalidRequestError: they are too long for their width.
    """
    frame, edge = form.frame, form.frame.edge
    if form.kind == "Qwen2VL":
        return whole_size(width, height, _capped(frame, num_frames, form))
    num_frames = max(num_frames, form.num_at_once)  # a single one is repeated
    if form.has_caps:
        share = min(form.max_tokens * edge**2, frame.max_pixels // num_frames)
        frame = replace(frame, max_pixels=max(share, int(frame.min_pixels * _CAPPED)) * num_frames)
    return size_of_frames(width, height, num_frames, form.num_at_once, frame)


def _capped(frame: PictureForm, num_frames: int, form: VideoForm) -> PictureForm:
    if not form.has_caps:
        return frame
    total = int(form.max_tokens * frame.edge**2 * _SHARE)
    most = min(frame.max_pixels, total * form.num_at_once // num_frames)
    return replace(frame, max_pixels=max(most, int(frame.min_pixels * _CAPPED)))
