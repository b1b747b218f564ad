"""TokenBytes: the bytes that each token adds to a text, so that a stream can be decoded token by token.

The decoders of language models print token by token: the text of a list of tokens is their bytes in a row, read as
UTF-8. A token's bytes depend only on whether it comes first, because sentencepiece-like decoders then drop its leading
space. So there are two tables, filled on demand. Other decoders (CTC, BPE with end-of-word suffixes) are refused when
the model is loaded.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import Decoder

from lullm.errors import InvalidRequestError, ModelLoadError

_TOKENWISE = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"})
_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_MOST_SQUARES = 1 << 30
_ANCHOR = "a"  # a token that every decoder prints unchanged


def check_lengths(tokens: Iterable[str | bytes], where: str) -> None:
    """Refuse a vocabulary whose pairs would take long to find: each split of a token hashes both of its parts.

    One token of 16 MB took hours. Known vocabularies have sums of squares of up to 10^8.

    Raises:
        ModelLoadError: the tokens are too long. `where`: the file that holds them.
    """
    if sum(len(token) ** 2 for token in tokens) > _MOST_SQUARES:
        raise ModelLoadError(f"{where} has longer tokens than any known tokenizer; take the model's own files")


class TokenBytes:
    """Token id -> bytes, for one tokenizer. Safe to use from several threads; a look-up costs O(1).

    `replaces_each_byte`: the decoder prints one replacement character per byte of a broken character (ByteFallback)
    instead of one per broken character (ByteLevel).

    Raises:
        ModelLoadError: the decoder does not print token by token.
    """

    def __init__(self, backend: Backend):
        self._backend = backend
        self._decoder: Decoder | None = backend.decoder
        kinds = _decoder_kinds(self._decoder)
        self._is_byte_level = "ByteLevel" in kinds
        self.replaces_each_byte = "ByteFallback" in kinds
        self._inner: dict[int, bytes] = {}

    def inner(self, token_id: int) -> bytes:
        """The bytes that the token adds inside a text; empty for an id without a token."""
        found = self._inner.get(token_id)
        if found is None:
            found = self._compute(token_id, is_first=False)
            if found:  # ids without a token must not fill the table
                self._inner[token_id] = found
        return found

    def first(self, token_id: int) -> bytes:
        """The bytes that the token adds as the first of a text; empty for an id without a token."""
        return self._compute(token_id, is_first=True)

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, or None. Raises InvalidRequestError: not a possible id."""
        try:
            return self._backend.id_to_token(token_id)
        except (OverflowError, TypeError):
            raise InvalidRequestError(f"{token_id!r} is not a token id") from None

    def _compute(self, token_id: int, is_first: bool) -> bytes:
        token = self.token(token_id)
        if token is None:
            return b""
        if self._is_byte_level:
            # Like the library: a token with a character outside the byte alphabet stands for itself.
            values = [_BYTE_OF_CHAR.get(char, -1) for char in token]
            return token.encode() if -1 in values else bytes(values)
        if self.replaces_each_byte and (match := _BYTE_TOKEN.fullmatch(token)):
            value = int(match[1], 16)
            if value >= 0x80 or not is_first:  # the first token's space may be dropped, also as a byte
                return bytes([value])
        if self._decoder is None:  # the library joins with spaces then
            return (token if is_first else " " + token).encode()
        if is_first:
            return self._decoder.decode([token]).encode()
        return self._decoder.decode([_ANCHOR, token]).removeprefix(_ANCHOR).encode()


def _decoder_kinds(decoder: Decoder | None) -> set[str]:
    if decoder is None:
        return set()
    state: Any = decoder.__getstate__()
    steps = list(_steps(json.loads(state)))
    kinds = {step["type"] for step in steps}
    unfit = kinds - {"ByteLevel", "Fuse"} if "ByteLevel" in kinds else kinds - _TOKENWISE
    if any(step["type"] == "Strip" and step["stop"] for step in steps):
        unfit.add("Strip (at the end)")
    if unfit:
        raise ModelLoadError(
            f"tokenizer.json: its decoder ({', '.join(step['type'] for step in steps)}) cannot be streamed: "
            f"{', '.join(sorted(unfit))} is not supported there"
        )
    return kinds


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE spells bytes as printable characters: Latin-1's own where printable, else from U+0100 upwards.

    Source: Radford et al. 2019 (GPT-2).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(printable)]
    return {chr(v): v for v in printable} | {chr(0x100 + n): v for n, v in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()
BYTE_CHARACTERS = [char for char, _ in sorted(_BYTE_OF_CHAR.items(), key=lambda item: item[1])]
"""For each byte, the character that spells it in a byte-level vocabulary."""
