"""EmbedsReader: prompts that are given as rows of embeddings (`prompt_embeds`)."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.rows.values import RowsError, array_of, checked, pieces, placed, read_file
from lullm.errors import InvalidRequestError
from lullm.text.template.failure import WouldBlock
from lullm.types.vision.tile import TilePlace

FIELD = "prompt_embeds"
_BESIDE = frozenset({FIELD, "prompt", "cache_salt"})


def row_size(model: ModelConfig) -> int:
    """Elements of a row that stands in place of a token's embedding."""
    return model.family.embedding_size or model.hidden_size


class EmbedsReader:
    """Reads the rows of one model's prompts. Safe to call from several threads."""

    def __init__(self, config: ResolvedConfig, model: ModelConfig) -> None:
        self._config = config
        self._size = row_size(model)

    def read(self, prompt: Mapping[str, Any], may_block: bool) -> tuple[str | None, list[int], tuple[TilePlace, ...]]:
        """The text that the caller says of the rows, ids in their place, and the rows.

        Raises:
            InvalidRequestError: rows are off, or no rows of this model, or beside other content.
            WouldBlock: `may_block` is False.
        """
        if not self._config.enable_prompt_embeds:
            raise InvalidRequestError(
                "prompt_embeds need an engine with enable_prompt_embeds=True (--enable-prompt-embeds)", FIELD
            )
        others = sorted(str(key) for key, value in prompt.items() if key not in _BESIDE and value is not None)
        if others:
            raise InvalidRequestError(f"prompt_embeds are the whole prompt, without {', '.join(others)}", FIELD)
        text = prompt.get("prompt")
        if not isinstance(text, str | None):
            raise InvalidRequestError(f"prompt must be a string, not {type(text).__name__}", "prompt")
        if not may_block:
            raise WouldBlock
        given, dtype = prompt[FIELD], self._config.dtype
        try:
            values = read_file(_bytes(given)) if isinstance(given, bytes | str) else array_of(given)
            rows = checked(values, self._size, dtype, self._config.max_model_len)
        except RowsError as error:
            raise InvalidRequestError(f"prompt_embeds: {error}", FIELD) from None
        return text, *placed(pieces(rows, dtype, self._config.block_size), [], ())


def _bytes(given: bytes | str) -> bytes:
    """A file, or its base64. Raises RowsError."""
    if isinstance(given, bytes):
        return given
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RowsError(f"a text is the base64 of a file, and this is none: {error}") from None
