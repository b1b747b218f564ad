"""PictureFrame: the tokens in place of a picture: one for each row of its tiles, and the words around them."""

import functools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from lullm.config.vision.vision import VisionConfig
from lullm.errors import InvalidRequestError
from lullm.text.tokenizer import Tokenizer
from lullm.types.vision.tile import Tile
from lullm.vision.tiling import Tiled

_NEWLINE = "\n"
_PARAGRAPH = "\n\n"
_WHOLE, _PARTS = "Here is the original image ", " and here are some crops to help you see better "
"""Gemma 3's words, as it has learned them."""


@dataclass(frozen=True, slots=True)
class Framed:
    """The tokens of a picture. `before`, `after`: text that is tokenized together with the prompt's beside it."""

    token_ids: list[int]
    before: str = ""
    after: str = ""


class PictureFrame:
    """The frames of one model. Safe to call from several threads."""

    def __init__(self, vision: VisionConfig, tokenizer: Tokenizer) -> None:
        self._vision = vision
        self._tokenizer = tokenizer
        frame = weakref.proxy(self)  # a circle would outlive the engine

        @functools.lru_cache(maxsize=256)
        def of_grid(num_rows: int, num_columns: int) -> Framed:
            framed: Framed = frame._encode(num_rows, num_columns)
            return framed

        self._of_grid = of_grid

    def of(self, picture: Tiled) -> Framed:
        """Raises InvalidRequestError: the tokenizer lacks the token of rows."""
        if self._vision.frame == "none":
            num_rows = sum(self._vision.tokens_of(*tile.shape) for tile in picture.tiles)
            return Framed([self._vision.image_token_id] * num_rows)
        if self._vision.frame == "marks":
            return Framed([token_id for tile in picture.tiles for token_id in self._marked(tile)])
        if self._vision.frame == "lines":
            return Framed([token_id for tile in picture.tiles for token_id in self._lines(tile)])
        return self._of_grid(picture.num_rows, picture.num_columns)

    def _marked(self, tile: Tile) -> list[int]:
        vision = self._vision
        assert vision.begin_token_id is not None and vision.end_token_id is not None, "of this frame"
        rows = [vision.image_token_id] * vision.tokens_of(*tile.shape)
        return [vision.begin_token_id, *rows, vision.end_token_id]

    def _lines(self, tile: Tile) -> list[int]:
        """The ids of Pixtral's lines of rows: a word behind each, and another one behind the last."""
        named = self._tokenizer.special_tokens
        words = named.get("image_break_token", "[IMG_BREAK]"), named.get("image_end_token", "[IMG_END]")
        behind, end = (self._tokenizer.backend.token_to_id(word) for word in words)
        if behind is None or end is None:
            raise InvalidRequestError(
                f"the tokenizer of this model has no tokens {words[0]} and {words[1]} for pictures"
            )
        line_len = self._vision.line_of(tile.width)
        line = [self._vision.image_token_id] * (line_len - 1) + [behind]
        return (line * (self._vision.tokens_of(*tile.shape) // line_len))[:-1] + [end]

    def joined(self, before: str, token_ids: list[int], after: str) -> list[int]:
        """The ids of a part of a prompt between two texts of frames, as of one text.

        Special tokens end a text. Ids that a tokenizer would not give stay as they are.
        """
        if not before and not after:
            return token_ids
        special = self._tokenizer.special_token_ids
        marks = [place for place, token_id in enumerate(token_ids) if token_id in special]
        if not marks:
            return self._with_text(before, token_ids, after)
        first, last = marks[0], marks[-1]
        head, tail = token_ids[:first], token_ids[last + 1 :]
        return self._with_text(before, head, "") + token_ids[first : last + 1] + self._with_text("", tail, after)

    def _with_text(self, before: str, token_ids: list[int], after: str) -> list[int]:
        if not before and not after:
            return token_ids
        text = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        if self._text_ids(text) == token_ids:
            return self._text_ids(before + text + after)
        return self._text_ids(before) + token_ids + self._text_ids(after)

    def _text_ids(self, text: str) -> list[int]:
        return self._tokenizer.encode_as_text(text, add_special_tokens=False) if text else []

    def word(self, token_id: int) -> str:
        """The text of a token of frames."""
        return self._tokenizer.backend.id_to_token(token_id) or "<image>"

    def _encode(self, num_rows: int, num_columns: int) -> Framed:
        """The ids of a grid of square tiles, and the tile of the whole behind it, with the words around them.

        The words may be tokens or text. They stand between special tokens, so they are encoded alike anywhere.
        """
        vision = self._vision
        edge = vision.picture.edge
        rows_per_tile = vision.rows_of(edge, edge)
        rows = self.word(vision.image_token_id) * rows_per_tile
        named, num_tiles = self._tokenizer.special_tokens, num_rows * num_columns + 1
        before = after = ""
        if vision.frame == "places":
            text = _with_places(rows, num_rows, num_columns, named)
        elif vision.frame == "words":
            assert vision.end_token_id is not None, "of this frame"
            tile = self.word(vision.placeholder_id) + rows + self.word(vision.end_token_id)
            before, text, after = _with_words(tile, num_tiles - 1)
        else:
            text = rows * num_tiles
            text = named.get("start_image_token", "<img>") + text + named.get("end_image_token", "</img>")
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        if token_ids.count(vision.image_token_id) != num_tiles * rows_per_tile:
            word = self.word(vision.image_token_id)
            raise InvalidRequestError(f"the tokenizer of this model has no token {word} for pictures")
        return Framed(token_ids, before, after)


def _with_places(rows: str, num_rows: int, num_columns: int, named: Mapping[str, str]) -> str:
    """Idefics3's words, which tell the place of each tile. `rows`: of a tile."""
    frame = named.get("fake_image_token", "<fake_token_around_image>")
    whole = named.get("global_image_token", "<global-img>")
    lines = [
        "".join(f"{frame}<row_{row + 1}_col_{column + 1}>{rows}" for column in range(num_columns)) + _NEWLINE
        for row in range(num_rows)
    ]
    return "".join(lines) + _NEWLINE * bool(lines) + f"{frame}{whole}{rows}{frame}"


def _with_words(tile: str, num_parts: int) -> tuple[str, str, str]:
    """(text before the first tile, the tiles and what is between them, text behind them)."""
    if not num_parts:
        return _PARAGRAPH, tile, _PARAGRAPH
    parts = f"{_PARAGRAPH} {_PARAGRAPH}".join([tile] * num_parts)
    return _WHOLE + _PARAGRAPH, f"{tile}{_PARAGRAPH}{_PARTS}{_PARAGRAPH}{parts}", _PARAGRAPH
