"""Videos of a prompt: VideoInput makes their tiles, VideoFrame the tokens in place of one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.config.vision.video import TimeWords, VideoForm
from lullm.config.vision.vision import VisionConfig
from lullm.engine.vision.frame import Framed
from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer
from lullm.units import cdiv
from lullm.vision.bounds import too_many_rows
from lullm.vision.container import MOST_DECODED
from lullm.vision.film import film_of
from lullm.vision.frame_tiling import Filmed, developed, wound


class VideoInput:
    """The videos of one model. Safe to call from several threads."""

    def __init__(self, config: ResolvedConfig, model: ModelConfig) -> None:
        self._vision = model.vision
        self._max_model_len = config.max_model_len

    def read(self, given: Sequence[Any], form: VideoForm, num_rows: int) -> list[Filmed]:
        """The tiles of videos, beside `num_rows` rows of pictures. Takes a hundredth of a second for a large frame.

        Args:
            given: see `film_of`.

        Raises:
            InvalidRequestError: one is broken, or too large; or the prompt has no room for them.
            UnsupportedError: see `film_of`.
        """
        assert self._vision is not None or not given, "checked before"
        reels = [wound(film_of(one), form) for one in given]
        for reel in reels:
            assert self._vision is not None
            num_tiles = cdiv(len(reel.numbers), form.num_at_once)
            num_rows += num_tiles * self._vision.rows_of(reel.height, reel.width)
        if reels and num_rows > self._max_model_len:
            raise too_many_rows("frames", num_rows, self._max_model_len)
        if (num_decoded := sum(reel.num_decoded for reel in reels)) > MOST_DECODED:
            raise InvalidRequestError(
                f"the videos have {num_decoded} pixels in all frames up to the last one that is read, and a request "
                f"may have {MOST_DECODED}; send a part, or smaller ones"
            )
        return [developed(reel, form) for reel in reels]


class VideoFrame:
    """The tokens of videos of one model. Safe to call from several threads."""

    def __init__(self, vision: VisionConfig, tokenizer: Tokenizer) -> None:
        self._vision = vision
        self._tokenizer = tokenizer
        words, named = None if vision.video is None else vision.video.words, tokenizer.special_tokens
        self._start = named.get("vision_start_token", words.start) if words is not None else ""
        self._end = named.get("vision_end_token", words.end) if words is not None else ""

    @property
    def place_id(self) -> int | None:
        """The id in a prompt in place of a whole video; None: the model sees none."""
        return None if self._vision.video is None else self._vision.video.token_id

    @property
    def row_id(self) -> int | None:
        """The id in place of each row of a video."""
        return None if self._vision.video is None else self._vision.video.row_id

    def of(self, video: Filmed) -> Framed:
        """Raises InvalidRequestError: the tokenizer lacks a token of frames."""
        config = self._vision.video
        assert config is not None, "of models that see videos"
        numbers = [self._vision.tokens_of(*tile.shape) for tile in video.tiles]
        if config.words is None:
            return Framed([config.row_id] * sum(numbers))
        word = self._tokenizer.backend.id_to_token(config.row_id) or ""
        texts = [_time_of(first, last, config.words) for first, last in video.seconds]
        frames = [f"{self._start}{word * number}{self._end}" for number in numbers]
        between = texts[:-1] if config.words.is_behind else texts[1:]
        later = "".join(f"{text}{frame}" for text, frame in zip(between, frames[1:], strict=True))
        token_ids = self._tokenizer.encode(frames[0] + later, add_special_tokens=False)
        if token_ids.count(config.row_id) != sum(numbers):
            raise InvalidRequestError(f"the tokenizer of this model has no token {word} for videos")
        return Framed(token_ids, after=texts[-1]) if config.words.is_behind else Framed(token_ids, texts[0])

    def strip(self, parts: list[list[int]], items: Sequence[object]) -> None:
        """Take the words of a picture away that a prompt has around a whole video, if its tiles have their own.

        `parts`: the tokens before, between and behind the `items`.
        """
        config = self._vision.video
        if config is None or config.words is None or not config.words.takes_place:
            return
        start, end = (self._tokenizer.backend.token_to_id(word) for word in (self._start, self._end))
        for number, item in enumerate(items):
            before, after = parts[number], parts[number + 1]
            if isinstance(item, Filmed) and before[-1:] == [start] and after[:1] == [end]:
                del before[-1], after[0]

    def times(self, video: Filmed) -> list[tuple[int, bool]]:
        """(`RowGeometry.time`, `RowGeometry.goes_on`) of each tile."""
        config, number = self._vision.video, len(video.tiles)
        assert config is not None, "of models that see videos"
        if config.words is not None:
            return [(0, False)] * number
        places = np.arange(number, dtype=np.float32)
        if config.positions_per_second is not None:  # each product is rounded, as in transformers
            factor = np.float32(config.positions_per_second)
            if config.is_nominal:
                places = places * np.float32(video.nominal_s) * factor
            else:
                places *= factor * np.float32(video.interval_s)
        return [(int(time), place < number - 1) for place, time in enumerate(places)]


def _time_of(first: float, last: float, words: TimeWords) -> str:
    """The text of a tile whose frames are of these seconds."""
    second = first if words.of_first else (first + last) / 2
    return words.text.format(int(second) if words.is_whole else second)
