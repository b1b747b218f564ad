"""Which frames of a video are read: the numbers that transformers' video processors choose."""

import math

import numpy as np

from lullm.config.vision.video import VideoForm
from lullm.errors import InvalidRequestError

UNKNOWN_FPS = 24.0
"""Frames per second of a video that does not say it, as in transformers."""


def sampled(num_frames: int, fps: float | None, form: VideoForm) -> list[int]:
    """Numbers from 0 to `num_frames` - 1, ascending.

    Args:
        num_frames: that there are, at least one. fps: of them; None: it is not known.

    Raises InvalidRequestError: the form asks for frames by the second, and theirs is not known.
    """
    if form.kind == "Qwen3VL":
        return _spread(num_frames, fps or UNKNOWN_FPS, form)
    number = _number(num_frames, fps, form)
    places = np.arange(0, num_frames, num_frames / number).astype(np.float32)  # rounded as there
    return [int(place) for place in places]


def _number(num_frames: int, fps: float | None, form: VideoForm) -> int:
    """Of frames that Qwen2-VL reads: whole groups, if there are so many."""
    group = form.num_at_once
    if form.num_frames is not None:
        wanted: float = round(form.num_frames / group) * group
        return max(math.floor(min(wanted, num_frames) / group) * group, 1)
    if fps is None:
        raise InvalidRequestError(
            "mm_processor_kwargs ask for frames by the second, and the fps of the video is not known; give it beside "
            "the frames: (frames, {'fps': 30.0}), or ask for num_frames"
        )
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
