"""VideoConfig: how a model sees videos. A tower reads some frames at once; each such group is a tile."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lullm.config.vision.form import PictureForm

VideoKind = Literal["Qwen2VL", "Qwen3VL", "Glm4v", "Glm46V"]


@dataclass(frozen=True, slots=True)
class VideoForm:
    """From frames to the pixels of tiles.

    Args:
        kind: the class of the video processor. 'Qwen2VL': `min_pixels` and `max_pixels` of `frame` are of each frame;
            the others: of all that are read, together.
        frame: of each one.
        num_at_once: frames of a tile; the last one of a video is repeated until they are as many.
        samples: frames are left out, so that those of `fps` or `num_frames` are read; None: of a file, and of others if
            one of these was asked for.
        fps: frames that are read of a second, but at least `min_frames` and at most `max_frames` of a video; with
            'Glm46V' its length alone says how many.
        max_duration: seconds; of a longer video as many frames are read as of one of this length ('Glm4v').
        num_frames: that are read of a video; None: `fps` says it.
        has_caps: a frame has fewer pixels than `max_pixels` if there are many: by `max_tokens`, of all together
            ('Qwen2VL'), or of each ('Qwen3VL').
        stated: the keys of the video processor that it was read from.
    """

    kind: VideoKind
    frame: PictureForm
    num_at_once: int
    samples: bool | None
    fps: float | None
    num_frames: int | None
    min_frames: int
    max_frames: int
    has_caps: bool
    max_tokens: int
    max_duration: int
    stated: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def most_pixels(self) -> int:
        """The most pixels of a frame."""
        most, num_frames = self.frame.max_pixels, max(self.num_at_once, 2)
        if self.kind != "Qwen2VL":
            return max(most, math.ceil(self.frame.min_pixels * 1.05)) // num_frames
        return max(most, math.ceil(self.frame.min_pixels * 1.05)) if self.has_caps else most


@dataclass(frozen=True, slots=True)
class TimeWords:
    """Words of each tile of a video.

    Args:
        start, end: the tokens around its rows, unless the tokenizer has names for others.
        text: a format of its second. is_behind: it stands behind these tokens, not before them.
        of_first: it is the second of its first frame; otherwise that of the middle of its frames. is_whole: fractions
            are cut off.
        takes_place: a prompt has `start` and `end` around a whole video, too, and these are taken away.
    """

    start: str
    end: str
    text: str
    is_behind: bool = False
    of_first: bool = False
    is_whole: bool = False
    takes_place: bool = False


@dataclass(frozen=True, slots=True)
class VideoConfig:
    """All of it.

    Args:
        token_id: the id in a prompt in place of a whole video. row_id: of each row of its tiles.
        words: that tell the time of each tile; None: tiles follow one another without words, and their positions tell
            their order.
        positions_per_second: how far these positions are apart (Qwen2.5-VL); None: 1, whatever the time between them.
        is_nominal: that time is of the frames of a second that are asked for, whatever frames are given (Qwen2.5-Omni).
    """

    form: VideoForm
    token_id: int
    row_id: int
    words: TimeWords | None
    positions_per_second: float | None
    is_nominal: bool = False
