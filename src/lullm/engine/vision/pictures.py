"""PictureInput: takes the pictures out of a caller's prompt, and puts their tiles in the place of tokens.

Both halves are those of transformers' processors: the same tokens, and the same pixels as with Pillow.
"""

import functools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.config.vision.setting import form_of_request
from lullm.config.vision.vision import PictureForm
from lullm.errors import InvalidRequestError
from lullm.text.chat_template import PICTURE
from lullm.text.template.failure import WouldBlock
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import Conversation, Input
from lullm.types.vision.tile import TilePlace
from lullm.vision.bounds import check_pictures
from lullm.vision.picture import as_picture, decoded, encoded_size, size_of
from lullm.vision.source import picture_bytes
from lullm.vision.tiling import Tiled, tiled

P = TypeVar("P", bound=Input)

_PARTS = ("image_url", "input_image", "image_pil", "image")
"""Types of parts that hold a picture: OpenAI's, vLLM's, and that of transformers."""
_NEWLINE = "\n"
_MOST_AT_ONCE = 4
"""Pictures that are decoded by as many callers: the largest ones take half a gigabyte each meanwhile."""


class PictureInput:
    """The pictures of one model. Safe to call from several threads."""

    def __init__(self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer) -> None:
        self._vision = model.vision
        self._reason = model.no_vision
        self._tokenizer = tokenizer
        self._most = config.limit_mm_per_prompt
        self._max_model_len = config.max_model_len
        self._decoding = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._folder = None if config.allowed_local_media_path is None else Path(config.allowed_local_media_path)
        self._frame_ids = functools.lru_cache(maxsize=256)(self._encode_frame)

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
        # Some kilobytes hold pictures of gigabytes: sizes first.
        check_pictures([self._size(one) for one in given], form, self._vision.rows_of, self._max_model_len)
        return prompt, [self._tiled(one, form) for one in given]

    def place(self, token_ids: list[int], pictures: Sequence[Tiled]) -> tuple[list[int], tuple[TilePlace, ...]]:
        """The ids of a prompt with a token for each row of a picture, and the places of all tiles.

        Raises InvalidRequestError: the prompt has more or fewer places than there are pictures.
        """
        if self._vision is None:
            return token_ids, ()
        image_id = self._vision.image_token_id
        num_places = token_ids.count(image_id)
        if num_places != len(pictures):
            raise InvalidRequestError(
                f"the prompt has {num_places} places for pictures ({self._image_token}), and {len(pictures)} pictures "
                "come with it"
            )
        if not pictures:
            return token_ids, ()
        expanded: list[int] = []
        places: list[TilePlace] = []
        waiting = iter(pictures)
        for token_id in token_ids:
            if token_id != image_id:
                expanded.append(token_id)
                continue
            picture = next(waiting)
            start = len(expanded)
            expanded += self._ids_of(picture)
            tiles = iter(picture.tiles)
            while start < len(expanded):
                if expanded[start] == image_id:
                    tile = next(tiles)
                    num_rows = self._vision.rows_of(tile.height, tile.width)
                    places.append(TilePlace(tile, start, num_rows, self._vision.columns_of(tile.width)))
                    start += num_rows
                else:
                    start += 1
        return expanded, tuple(places)

    def _shows_pictures(self, prompt: Conversation) -> bool:
        template = self._tokenizer.chat_template
        return prompt.template is not None or template is None or template.shows_pictures

    def _size(self, given: Any) -> tuple[int, int]:
        return encoded_size(picture_bytes(given, self._folder)) if isinstance(given, str) else size_of(given)

    def _tiled(self, given: Any, form: PictureForm) -> Tiled:
        with self._decoding:
            return tiled(self._opened(given), form)

    def _opened(self, given: Any) -> Any:
        return decoded(picture_bytes(given, self._folder)) if isinstance(given, str) else as_picture(given)

    @property
    def _image_token(self) -> str:
        assert self._vision is not None
        return self._tokenizer.backend.id_to_token(self._vision.image_token_id) or "<image>"

    def _ids_of(self, picture: Tiled) -> list[int]:
        """The ids in place of one picture."""
        assert self._vision is not None
        if self._vision.frame == "none":
            num_rows = sum(self._vision.rows_of(tile.height, tile.width) for tile in picture.tiles)
            return [self._vision.image_token_id] * num_rows
        return self._frame_ids(picture.num_rows, picture.num_columns)

    def _encode_frame(self, num_rows: int, num_columns: int) -> list[int]:
        """The ids of a grid of square tiles, and the tile of the whole behind it, with the words around them.

        The words may be tokens or text. They stand between special tokens, so they are encoded alike anywhere.
        """
        assert self._vision is not None
        edge = self._vision.picture.edge
        rows_per_tile = self._vision.rows_of(edge, edge)
        rows = self._image_token * rows_per_tile
        named, num_tiles = self._tokenizer.special_tokens, num_rows * num_columns + 1
        if self._vision.frame == "places":
            text = _with_places(rows, num_rows, num_columns, named)
        else:
            text = rows * num_tiles
            text = named.get("start_image_token", "<img>") + text + named.get("end_image_token", "</img>")
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        if token_ids.count(self._vision.image_token_id) != num_tiles * rows_per_tile:
            raise InvalidRequestError(f"the tokenizer of this model has no token {self._image_token} for pictures")
        return token_ids


def _with_places(rows: str, num_rows: int, num_columns: int, named: Mapping[str, str]) -> str:
    """Idefics3's words, which tell the place of each tile. `rows`: of a tile."""
    frame = named.get("fake_image_token", "<fake_token_around_image>")
    whole = named.get("global_image_token", "<global-img>")
    lines = [
        "".join(f"{frame}<row_{row + 1}_col_{column + 1}>{rows}" for column in range(num_columns)) + _NEWLINE
        for row in range(num_rows)
    ]
    return "".join(lines) + _NEWLINE * bool(lines) + f"{frame}{whole}{rows}{frame}"


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
