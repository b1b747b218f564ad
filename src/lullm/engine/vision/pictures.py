"""PictureInput: takes the pictures and videos out of a caller's prompt, and puts their tiles in the place of tokens.

Both halves are those of transformers' processors: the same tokens, and the same pixels as with Pillow.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.config.vision.form import PictureForm
from lullm.config.vision.setting import forms_of_request
from lullm.engine.caller.media_part import with_word
from lullm.engine.vision.frame import Framed, PictureFrame
from lullm.engine.vision.parts import Given, shown_in, without_shown
from lullm.engine.vision.videos import VideoFrame, VideoInput
from lullm.errors import InvalidRequestError
from lullm.text.chat_template import PICTURE as PLACE
from lullm.text.template.failure import WouldBlock
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import Conversation, Input
from lullm.types.vision.tile import RowGeometry, Tile, TilePlace
from lullm.vision.bounds import check_pictures
from lullm.vision.film import fetched
from lullm.vision.frame_tiling import Filmed
from lullm.vision.picture import as_picture, decoded, encoded_size, size_of
from lullm.vision.source import PICTURE as MEDIUM
from lullm.vision.source import MediaSource
from lullm.vision.tiling import Tiled, tiled

P = TypeVar("P", bound=Input)

_MOST_AT_ONCE = 4
"""Pictures that are decoded by as many callers: the largest ones take half a gigabyte each meanwhile."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The pictures and the videos of a prompt, each in order."""

    pictures: list[Tiled]
    videos: list[Filmed]

    @property
    def is_any(self) -> bool:
        return bool(self.pictures or self.videos)


class PictureInput:
    """The pictures and videos of one model. Safe to call from several threads."""

    def __init__(self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer) -> None:
        self._vision = model.vision
        self._reason = model.no_vision
        self._tokenizer = tokenizer
        self._most = config.limit_mm_per_prompt
        self._max_model_len = config.max_model_len
        self._decoding = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._source = MediaSource.of(config)
        self._frame = None if model.vision is None else PictureFrame(model.vision, tokenizer)
        template = tokenizer.chat_template
        if self._frame is not None and model.vision is not None and model.vision.spells is not None and template:
            template.spell(PLACE, self._frame.word(model.vision.placeholder_id), model.vision.spells)
        self._videos = VideoInput(config, model)
        self._video_frame = None if model.vision is None else VideoFrame(model.vision, tokenizer)
        self._num_others = config.max_num_seqs - 1
        self._most_at_once = config.max_num_batched_tokens - self._num_others

    def take(self, prompt: P, may_block: bool) -> tuple[P, Shown]:
        """The prompt with places instead of pictures and videos, and their tiles. Decoding takes milliseconds for each
        picture and frame.

        Raises:
            InvalidRequestError: the model sees no pictures or videos, or not so many; one is broken, too large, or
                nowhere; or `mm_processor_kwargs` are wrong.
            UnsupportedError: Pillow is not installed, or PyAV for a file with a video.
            WouldBlock: there are pictures, and `may_block` is False.
        """
        given, settings = Given([], []), settings_of(prompt)
        if isinstance(prompt, Conversation):
            prompt = cast(P, without_shown(prompt, given))
        elif isinstance(prompt, Mapping) and prompt.get("multi_modal_data") is not None:
            given = shown_in(prompt["multi_modal_data"])
            prompt = cast(P, {key: value for key, value in prompt.items() if key != "multi_modal_data"})
        if not given.pictures and not given.videos:
            return prompt, Shown([], [])
        if self._vision is None:
            raise InvalidRequestError(f"this model takes text only{': ' * bool(self._reason)}{self._reason}")
        if given.videos and self._vision.video is None:
            raise InvalidRequestError(f"this model takes no videos: {self._vision.no_video}")
        for noun, found, most in (
            ("pictures", given.pictures, self._most.image),
            ("videos", given.videos, self._most.video),
        ):
            if len(found) > most:
                raise InvalidRequestError(
                    f"a prompt may have at most {most} {noun} (limit_mm_per_prompt), not {len(found)}"
                )
        if self._frame is not None:
            prompt = with_word(prompt, self._vision.numbered, self._frame.word(self._vision.placeholder_id))
        form, video_form = forms_of_request(self._vision, settings)
        if not may_block:
            raise WouldBlock
        if isinstance(prompt, Conversation):
            self._check_template(prompt, given)
        pictures = [self._source.read(one, MEDIUM) if isinstance(one, str) else one for one in given.pictures]
        films = [fetched(one, self._source) for one in given.videos]
        # Some kilobytes hold pictures of gigabytes: sizes first.
        sizes = [encoded_size(one) if isinstance(one, bytes) else size_of(one) for one in pictures]
        num_rows = check_pictures(sizes, form, self._vision.tokens_of, self._max_model_len)
        with self._decoding:
            videos = self._videos.read(films, video_form, num_rows) if video_form is not None else []
        return prompt, Shown([self._tiled(one, form) for one in pictures], videos)

    def _check_template(self, prompt: Conversation, given: Given) -> None:
        template = self._tokenizer.chat_template
        if prompt.template is not None or template is None:
            return
        for noun, found, shows in (
            ("pictures", given.pictures, template.shows_pictures),
            ("videos", given.videos, template.shows_videos),
        ):
            if found and not shows:
                raise InvalidRequestError(
                    f"the chat template of this model has no place for {noun}; give one that has (chat_template)"
                )

    def place(self, token_ids: list[int], shown: Shown) -> tuple[list[int], tuple[TilePlace, ...]]:
        """The ids of a prompt with a token for each row of a picture, and the places of all tiles.

        Raises InvalidRequestError: the prompt has more or fewer places than there are pictures or videos; or a step has
            no room for one.
        """
        if self._vision is None or self._frame is None or self._video_frame is None:
            return token_ids, ()
        self._check_places(token_ids, shown)
        place_id, video_id = self._vision.placeholder_id, self._video_frame.place_id
        marks = (place_id,) if video_id is None else (place_id, video_id)
        pictures, videos = iter(shown.pictures), iter(shown.videos)
        items: list[Tiled | Filmed] = [
            next(videos) if token_id == video_id else next(pictures) for token_id in token_ids if token_id in marks
        ]
        if not items:
            return token_ids, ()
        parts = split_at(token_ids, *marks)
        self._video_frame.strip(parts, items)
        framed = [self._framed(item) for item in items]
        befores, afters = [*(one.before for one in framed), ""], ["", *(one.after for one in framed)]
        expanded = self._frame.joined("", parts[0], befores[0])
        places: list[TilePlace] = []
        for number, item in enumerate(items):
            places += self._tile_places(item, framed[number].token_ids, len(expanded))
            expanded += framed[number].token_ids
            expanded += self._frame.joined(afters[number + 1], parts[number + 1], befores[number + 1])
        _check_positions(places)
        return expanded, tuple(places)

    def _check_places(self, token_ids: list[int], shown: Shown) -> None:
        """Raises InvalidRequestError: a prompt has more or fewer places than there are pictures or videos."""
        assert self._vision is not None and self._frame is not None and self._video_frame is not None
        image_id, place_id, video_id = (
            self._vision.image_token_id, self._vision.placeholder_id, self._video_frame.place_id
        )  # fmt: skip
        for noun, mark, items in (("pictures", place_id, shown.pictures), ("videos", video_id, shown.videos)):
            num_places = 0 if mark is None else token_ids.count(mark)
            if num_places != len(items):
                assert mark is not None, "models without a place for videos take none"
                raise InvalidRequestError(
                    f"the prompt has {num_places} places for {noun} ({self._frame.word(mark)}), and "
                    f"{len(items)} {noun} come with it"
                )
        if image_id != place_id and image_id in token_ids:
            raise InvalidRequestError(
                f"the prompt has {self._frame.word(image_id)}, which stands for rows of pictures; put "
                f"{self._frame.word(place_id)} in the place of a picture"
            )

    def _tile_places(self, item: Tiled | Filmed, token_ids: list[int], start: int) -> Iterator[TilePlace]:
        """The places of the tiles of a picture or video whose tokens begin at `start` of the prompt."""
        assert self._vision is not None and self._video_frame is not None
        row_id: int | None = self._vision.image_token_id
        times = [(0, False)] * len(item.tiles)
        if isinstance(item, Filmed):
            row_id, times = self._video_frame.row_id, self._video_frame.times(item)
        tiles = zip(item.tiles, times, strict=True)
        at = 0
        while at < len(token_ids):
            if token_ids[at] == row_id:
                place = self._placed(*next(tiles), start + at)
                yield place
                at += place.num_rows
            else:
                at += 1

    def _framed(self, item: Tiled | Filmed) -> Framed:
        assert self._frame is not None and self._video_frame is not None, "of models that see"
        return self._video_frame.of(item) if isinstance(item, Filmed) else self._frame.of(item)

    def _placed(self, tile: Tile, time: tuple[int, bool], start: int) -> TilePlace:
        """Raises InvalidRequestError: a step must compute all of it, and has no room for it."""
        assert self._vision is not None
        num_rows, is_mutual = self._vision.tokens_of(*tile.shape), self._vision.is_mutual
        if is_mutual and num_rows > self._most_at_once:
            raise InvalidRequestError(
                f"rows of a picture see each other, so a step must compute all {num_rows} of them, and it has room for "
                f"{max(self._most_at_once, 0)} beside the next tokens of other requests; start the engine with "
                f"max_num_batched_tokens of at least {num_rows + self._num_others}"
            )
        columns, line_len = self._vision.columns_of(tile.width), self._vision.line_of(tile.width)
        return TilePlace(tile, start, num_rows, RowGeometry(columns, is_mutual, line_len, *time))

    def _tiled(self, given: Any, form: PictureForm) -> Tiled:
        with self._decoding:
            return tiled(decoded(given) if isinstance(given, bytes) else as_picture(given), form)


def _check_positions(places: Sequence[TilePlace]) -> None:
    """Raises InvalidRequestError: positions of a video are so far apart that they go beyond places in the prompt."""
    shift = 0
    for place in places:
        shift += place.geometry.shift_behind(place.num_rows)
        if shift > 0:
            raise InvalidRequestError(
                "the frames of a video are too far apart in time for this model: their positions exceed those of the "
                "prompt; send more frames of each second, or larger ones, or leave their fps out"
            )


def settings_of(prompt: Input) -> Any:
    """The `mm_processor_kwargs` of a prompt, as they were given; None: there are none."""
    if isinstance(prompt, Conversation):
        return prompt.mm_processor_kwargs
    return prompt.get("mm_processor_kwargs") if isinstance(prompt, Mapping) else None


def split_at(token_ids: Sequence[int], *marks: int) -> list[list[int]]:
    """The parts between the ids that are `marks`."""
    parts: list[list[int]] = [[]]
    for token_id in token_ids:
        if token_id in marks:
            parts.append([])
        else:
            parts[-1].append(token_id)
    return parts
