"""PictureInput: takes the pictures out of a caller's prompt, and puts their tiles in the place of tokens.

Both halves are those of transformers' processors: the same tokens, and the same pixels as with Pillow.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.config.vision.setting import form_of_request
from lullm.config.vision.vision import PictureForm
from lullm.engine.vision.frame import PictureFrame
from lullm.errors import InvalidRequestError
from lullm.text.chat_template import PICTURE
from lullm.text.template.failure import WouldBlock
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import Conversation, Input
from lullm.types.vision.tile import Tile, TilePlace
from lullm.vision.bounds import check_pictures
from lullm.vision.picture import as_picture, decoded, encoded_size, size_of
from lullm.vision.source import PICTURE as MEDIUM
from lullm.vision.source import MediaSource
from lullm.vision.tiling import Tiled, tiled

P = TypeVar("P", bound=Input)

_PARTS = ("image_url", "input_image", "image_pil", "image")
"""Types of parts that hold a picture: OpenAI's, vLLM's, and that of transformers."""
_MOST_AT_ONCE = 4
"""Pictures that are decoded by as many callers: the largest ones take half a gigabyte each meanwhile."""


class PictureInput:
    """The pictures of one model. Safe to call from several threads."""

    def __init__(self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer) -> None:
        self._vision = model.vision
        self._reason = model.no_vision
        self._tokenizer = tokenizer
        self._most = config.limit_mm_per_prompt.image
        self._max_model_len = config.max_model_len
        self._decoding = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._source = MediaSource.of(config)
        self._frame = None if model.vision is None else PictureFrame(model.vision, tokenizer)
        self._num_others = config.max_num_seqs - 1
        self._most_at_once = config.max_num_batched_tokens - self._num_others

    def take(self, prompt: P, may_block: bool) -> tuple[P, list[Tiled]]:
        """The prompt with places instead of pictures, and their tiles, in order. Decoding takes milliseconds each.

        Raises:
            InvalidRequestError: the model sees no pictures, or not so many; one is broken, too large, or nowhere; or
                `mm_processor_kwargs` are wrong.
            UnsupportedError: Pillow is not installed.
            WouldBlock: there are pictures, and `may_block` is False.
        """
        given: list[Any] = []
        settings: Any = None
        if isinstance(prompt, Conversation):
            messages, settings = prompt.messages, prompt.mm_processor_kwargs
            if isinstance(messages, Sequence) and any(map(_has_pictures, messages)):
                prompt = cast(P, _without_pictures(prompt, given))
        elif isinstance(prompt, Mapping) and prompt.get("multi_modal_data") is not None:
            given, settings = _pictures_in(prompt["multi_modal_data"]), prompt.get("mm_processor_kwargs")
            prompt = cast(P, {key: value for key, value in prompt.items() if key != "multi_modal_data"})
        if not given:
            return prompt, []
        if self._vision is None:
            raise InvalidRequestError(f"this model takes text only{': ' * bool(self._reason)}{self._reason}")
        if len(given) > self._most:
            raise InvalidRequestError(
                f"a prompt may have at most {self._most} pictures (limit_mm_per_prompt), not {len(given)}"
            )
        form = form_of_request(self._vision, settings)
        if not may_block:
            raise WouldBlock
        if isinstance(prompt, Conversation) and not self._shows_pictures(prompt):
            raise InvalidRequestError(
                "the chat template of this model has no place for pictures; give one that has (chat_template)"
            )
        given = [self._source.read(one, MEDIUM) if isinstance(one, str) else one for one in given]
        # Some kilobytes hold pictures of gigabytes: sizes first.
        sizes = [encoded_size(one) if isinstance(one, bytes) else size_of(one) for one in given]
        check_pictures(sizes, form, self._vision.tokens_of, self._max_model_len)
        return prompt, [self._tiled(one, form) for one in given]

    def place(self, token_ids: list[int], pictures: Sequence[Tiled]) -> tuple[list[int], tuple[TilePlace, ...]]:
        """The ids of a prompt with a token for each row of a picture, and the places of all tiles.

        Raises InvalidRequestError: the prompt has more or fewer places than there are pictures; or a step has no room
            for one.
        """
        if self._vision is None or self._frame is None:
            return token_ids, ()
        image_id, place_id = self._vision.image_token_id, self._vision.placeholder_id
        word, num_places = self._frame.word(place_id), token_ids.count(place_id)
        if num_places != len(pictures):
            raise InvalidRequestError(
                f"the prompt has {num_places} places for pictures ({word}), and {len(pictures)} pictures come with it"
            )
        if image_id != place_id and image_id in token_ids:
            raise InvalidRequestError(
                f"the prompt has {self._frame.word(image_id)}, which stands for rows of pictures; put {word} in the "
                "place of a picture"
            )
        if not pictures:
            return token_ids, ()
        parts = split_at(token_ids, place_id)
        framed = [self._frame.of(picture) for picture in pictures]
        befores, afters = [*(one.before for one in framed), ""], ["", *(one.after for one in framed)]
        expanded = self._frame.joined("", parts[0], befores[0])
        places: list[TilePlace] = []
        for number, picture in enumerate(pictures):
            start = len(expanded)
            expanded += framed[number].token_ids
            tiles = iter(picture.tiles)
            while start < len(expanded):
                if expanded[start] == image_id:
                    places.append(self._placed(next(tiles), start))
                    start += places[-1].num_rows
                else:
                    start += 1
            expanded += self._frame.joined(afters[number + 1], parts[number + 1], befores[number + 1])
        return expanded, tuple(places)

    def _placed(self, tile: Tile, start: int) -> TilePlace:
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
        return TilePlace(tile, start, num_rows, columns, is_mutual, line_len)

    def _shows_pictures(self, prompt: Conversation) -> bool:
        template = self._tokenizer.chat_template
        return prompt.template is not None or template is None or template.shows_pictures

    def _tiled(self, given: Any, form: PictureForm) -> Tiled:
        with self._decoding:
            return tiled(decoded(given) if isinstance(given, bytes) else as_picture(given), form)


def split_at(token_ids: Sequence[int], mark: int) -> list[list[int]]:
    """The parts between the ids that are `mark`."""
    parts: list[list[int]] = [[]]
    for token_id in token_ids:
        if token_id == mark:
            parts.append([])
        else:
            parts[-1].append(token_id)
    return parts


def _has_pictures(message: Any) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, (list, tuple)) and any(_is_picture(part) for part in content)


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _PARTS


def _without_pictures(prompt: Conversation, found: list[Any]) -> Conversation:
    """The conversation with `PICTURE` in place of pictures, which are added to `found`."""
    messages: list[Any] = []
    for message in prompt.messages:
        if _has_pictures(message):
            content = []
            for part in message["content"]:
                if _is_picture(part):
                    found.append(_picture_of(part))
                content.append(PICTURE if _is_picture(part) else part)
            message = {**message, "content": content}
        messages.append(message)
    return replace(prompt, messages=messages)


def _picture_of(part: Mapping[str, Any]) -> Any:
    """What a part says about its picture: a URL, or an object."""
    kind = part["type"]
    value = part.get("image_url" if kind == "input_image" else kind)
    if kind == "image" and value is None:
        value = part.get("url")
    if kind in ("image_url", "input_image"):
        value = value.get("url") if isinstance(value, Mapping) else value
        if not isinstance(value, str):
            raise InvalidRequestError(f"a part of type {kind!r} needs the URL of a picture")
    if value is None:
        raise InvalidRequestError(f"a part of type {kind!r} has no picture")
    return value


def _pictures_in(data: Any) -> list[Any]:
    """The pictures of `multi_modal_data`."""
    if not isinstance(data, Mapping):
        raise InvalidRequestError(f"multi_modal_data is {{'image': picture or pictures}}, not {type(data).__name__}")
    others = [str(key) for key, value in data.items() if key != "image" and value is not None]
    if others:
        raise InvalidRequestError(f"multi_modal_data holds 'image' only, not {', '.join(others)}")
    pictures = data.get("image")
    pictures = [] if pictures is None else pictures
    given = list(pictures) if isinstance(pictures, (list, tuple)) else [pictures]
    if any(isinstance(one, str) for one in given):
        raise InvalidRequestError("multi_modal_data holds pictures, not their addresses: LLM.chat takes those")
    return given
