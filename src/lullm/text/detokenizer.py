"""IncrementalDetokenizer: generated ids -> growing text, in whole characters.

The library's `DecodeStream` and the usual "decode a window, emit the new part" wait for a text that does not end in
U+FFFD. With random ids, `DecodeStream` differed from `decode` in 133 of 300 rounds. It also held back bytes forever
that never become a character, and decoded all of them again in every step. Here each token is looked up as bytes
(`TokenBytes`), and Python's incremental UTF-8 decoder holds back at most the 3 bytes of an unfinished character. A
token costs O(its bytes).
"""

import codecs
import re
from collections.abc import Sequence

from lullm.text.tokenizer import Tokenizer

_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")
_REPLACEMENT = "\ufffd"


class IncrementalDetokenizer:
    """The text of one sequence, piece by piece.

    For byte-level tokenizers all pieces together are exactly `tokenizer.decode(ids, skip_special_tokens)`. For
    sentencepiece-like ones they are the text that the ids add after the prompt: the first token keeps its leading space
    if the prompt has visible tokens. One difference remains there: in a run of byte tokens with an error, `decode` also
    replaces the run's valid characters, which a stream has shown already.

    Args:
        prompt_token_ids: the prompt, or at least its last few tokens.
        shown_token_ids: special tokens that are shown as text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] | None = None,
        shown_token_ids: frozenset[int] = frozenset(),
    ):
        self._bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_token_ids - shown_token_ids if skip_special_tokens else frozenset()
        self._is_first = not any(self._is_visible(token_id) for token_id in reversed(prompt_token_ids or ()))
        self._replaces_each_byte = self._bytes.replaces_each_byte
        # "surrogateescape" gives one mark per broken byte, "replace" one per broken character.
        errors = "surrogateescape" if self._replaces_each_byte else "replace"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def append(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty. O(bytes of `token_ids`)."""
        pieces = []
        for token_id in token_ids:
            if token_id in self._skipped:
                continue
            if self._is_first and self._is_visible(token_id):
                self._is_first = False
                pieces.append(self._bytes.first(token_id))
            else:
                pieces.append(self._bytes.inner(token_id))
        return self._decode(b"".join(pieces))

    def finish(self) -> str:
        """The unfinished character that was held back, as replacement characters. Empty when called again."""
        return self._decode(b"", final=True)

    def _is_visible(self, token_id: int) -> bool:
        return token_id not in self._skipped and self._bytes.token(token_id) is not None

    def _decode(self, data: bytes, final: bool = False) -> str:
        text = self._decoder.decode(data, final)
        return _ESCAPED_BYTE.sub(_REPLACEMENT, text) if self._replaces_each_byte else text
