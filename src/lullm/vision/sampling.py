"""Which frames of a video are read: the numbers that transformers' video processors choose."""

import math

import numpy as np

from lullm.config.vision.video import VideoForm
from lullm.errors import InvalidRequestError

UNKNOWN_FPS = 24.0
"""Frames per second of a video that does not say it, as in transformers."""
_LENGTHS = ((30, 3), (300, 1), (2400, 0.5))
"""GLM-4.6V's: tiles of a second, by the seconds of a video."""
_MOST_FRAMES = 640
"""GLM-4.6V's, of a video."""


def sampled(num_frames: int, fps: float | None, form: VideoForm, is_file: bool) -> list[int]:
    """Numbers from 0 to `num_frames` - 1, ascending; the last one is twice there if GLM's processors read it twice.

    Args:
        num_frames: that there are, at least one. fps: of them; None: it is not known.
        is_file: the length of the video is that of its frames; otherwise it ends as its last one begins.

    Raises InvalidRequestError: the form asks for frames by the second, and theirs is not known.
    """
    if form.kind == "Qwen3VL":
        return _spread(num_frames, fps or UNKNOWN_FPS, form)
    if form.kind == "Qwen2VL":
        number = _number(num_frames, fps, form)
        places = np.arange(0, num_frames, num_frames / number).astype(np.float32)  # rounded as there
        return [int(place) for place in places]
    if fps is None:
        raise _unknown_fps("")
    duration = num_frames / fps if is_file else round((num_frames - 1) / fps) + 1
    by = _by_second if form.kind == "Glm4v" else _by_length
    numbers = [int(place) for place in np.unique(by(num_frames, fps, duration, form))]
    return numbers + numbers[-1:] * (len(numbers) % 2)


def _unknown_fps(advice: str) -> InvalidRequestError:
    return InvalidRequestError(
        "mm_processor_kwargs ask for frames by the second, and the fps of the video is not known; give it beside "
        "the frames: (frames, {'fps': 30.0})" + advice
    )


def _by_second(num_frames: int, fps: float, duration: float, form: VideoForm) -> np.ndarray:
    """As GLM-4.1V: one for each part of a second, up to the longest duration; then as many over the whole."""
    assert form.fps is not None, "this kind has one"
    if duration <= form.max_duration:
        places = np.arange(max(math.floor(duration * form.fps), 1)) * fps / form.fps
    else:
        number = int(form.max_duration * form.fps)
        if number >= num_frames:
            return np.arange(num_frames)
        places = np.linspace(0, duration, max(number, 1)) * fps
    found: np.ndarray = np.minimum(np.ceil(places), num_frames - 1)
    return found


def _by_length(num_frames: int, fps: float, duration: float, form: VideoForm) -> np.ndarray:
    """As GLM-4.6V: fewer of each second the longer the video is."""
    length = min(duration, _LENGTHS[-1][0])
    rate = next(rate for most, rate in _LENGTHS if length <= most) * form.num_at_once
    number = max(min(int(length * rate), _MOST_FRAMES), 1)
    places: list[int] = []
    if num_frames >= number:
        place, second, interval = 0, 0.0, 1 / fps
        while place < num_frames and len(places) <= number:  # more of them do not count
            place = max(place, math.floor(second * fps) - 1)
            while place < num_frames and place * interval < second:
                place += 1
            if place < num_frames:
                places.append(place)
            place, second = place + 1, second + 1 / rate
            if second >= int(duration):
                break
    if len(places) == number:
        return np.array(places)
    last = places[-1] if 0 < len(places) < number else num_frames - 1
    return np.linspace(0, last, number, dtype=int)


def _number(num_frames: int, fps: float | None, form: VideoForm) -> int:
    """The number of frames that Qwen2-VL reads: whole groups, if there are so many."""
    group = form.num_at_once
    if form.num_frames is not None:
        wanted: float = round(form.num_frames / group) * group
        return max(math.floor(min(wanted, num_frames) / group) * group, 1)
    if fps is None:
        raise _unknown_fps(", or ask for num_frames")
    assert form.fps is not None, "one of both is always there"
    most = math.floor(min(form.max_frames, num_frames) / group) * group
    wanted = min(max(num_frames / fps * form.fps, form.min_frames), most, num_frames)
    return max(math.floor(wanted / group) * group, 1)


def _spread(num_frames: int, fps: float, form: VideoForm) -> list[int]:
    """From the first frame to the last one, as Qwen3-VL's."""
    number = form.num_frames
    if number is None:
        assert form.fps is not None, "one of both is always there"
        number = max(int(num_frames / fps * form.fps), form.min_frames)
        number = min(number, form.max_frames)
    return [int(place) for place in np.linspace(0, num_frames - 1, min(number, num_frames)).round()]
