"""VideoConfig: how a model sees videos. A tower reads some frames at once; each such group is a tile."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lullm.config.vision.form import PictureForm

VideoKind = Literal["Qwen2VL", "Qwen3VL"]


@dataclass(frozen=True, slots=True)
class VideoForm:
    """From frames to the pixels of tiles.

    Args:
        kind: the class of the video processor. 'Qwen2VL': `min_pixels` and `max_pixels` of `frame` are of each frame;
            'Qwen3VL': of all that are read, together.
        frame: of each one.
        num_at_once: frames of a tile; the last one of a video is repeated until they are as many.
        samples: frames are left out, so that those of `fps` or `num_frames` are read; None: of a file, and of others if
            one of these was asked for.
        fps: frames that are read of a second, but at least `min_frames` and at most `max_frames` of a video.
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
    stated: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def most_pixels(self) -> int:
        """Of a frame."""
        most, num_frames = self.frame.max_pixels, max(self.num_at_once, 2)
        if self.kind == "Qwen3VL":
            return max(most, math.ceil(self.frame.min_pixels * 1.05)) // num_frames
        return max(most, math.ceil(self.frame.min_pixels * 1.05)) if self.has_caps else most


@dataclass(frozen=True, slots=True)
class VideoConfig:
    """All of it.

    Args:
        token_id: the id in a prompt in place of each row of a video, and of a whole one before it is expanded.
        tells_time: words tell the second of a tile before it, and those around a picture stand around it (Qwen3-VL).
            Otherwise tiles follow one another without words, and their positions tell their order.
        positions_per_second: how far these positions are apart (Qwen2.5-VL); None: 1, whatever the time between them.
    """

    form: VideoForm
    token_id: int
    tells_time: bool
    positions_per_second: float | None
