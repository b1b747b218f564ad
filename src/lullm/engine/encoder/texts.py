"""TextInput: the text that an encoder reads, and the tokens with which the decoder begins."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lullm.config.layer.encoder import EncoderConfig
from lullm.errors import InvalidRequestError
from lullm.types.packed import pack
from lullm.types.request import Conversation, Input, Prompt, TextPair
from lullm.types.vision.tile import Tile, TilePlace

_PAIR = ("encoder_prompt", "decoder_prompt")
_OF_ENCODER = frozenset({"prompt", "prompt_token_ids", "split_special_tokens", "add_special_tokens"})


class TextInput:
    """What the encoder of one model reads. Safe to call from several threads.

    Args:
        start_ids: the decoder's prompt, where a request names none.
        encode: (the encoder's prompt, may_block) -> its token ids, those around it included.
    """

    reads_text = True

    def __init__(
        self,
        encoder: EncoderConfig,
        start_ids: Sequence[int],
        vocab_size: int,
        encode: Callable[[Prompt, bool], list[int]],
    ):
        self._encoder, self._vocab_size = encoder, vocab_size
        self._start_ids = list(start_ids)
        self._encode = encode

    def take(self, prompt: Input, may_block: bool) -> tuple[Prompt, TilePlace]:
        """The decoder's prompt, and what the encoder reads.

        Raises:
            InvalidRequestError: the prompt has another form, or the text is empty, or too long. Errors of `encode`.
        """
        own, given = self._both(prompt)
        token_ids = self._encode(given, may_block)
        most = self._encoder.max_rows
        if not 0 < len(token_ids) <= most:
            raise InvalidRequestError(
                f"the encoder reads from 1 to {most} tokens, not {len(token_ids)}; the text is "
                f"{'too long' if token_ids else 'empty'}"
            )
        if not all(0 <= token_id < self._vocab_size for token_id in token_ids):
            raise InvalidRequestError(f"the encoder's prompt holds ids that are not from 0 to {self._vocab_size - 1}")
        return own, TilePlace(Tile.of(1, len(token_ids), pack(token_ids)), 0, len(token_ids))

    def split(self, prompt: Input) -> tuple[Prompt, Any]:
        """(what is tokenized of a prompt, the rest): the text, as the encoder reads it."""
        _, given = self._both(prompt)
        return given, None

    def _both(self, prompt: Input) -> tuple[Prompt, Prompt]:
        """The decoder's prompt, and the encoder's."""
        if isinstance(prompt, Conversation | TextPair):
            raise InvalidRequestError("this model takes a text and no conversation: its encoder reads the prompt")
        own: Any = None
        given: Any = prompt
        if isinstance(prompt, Mapping) and any(name in prompt for name in _PAIR):
            if unknown := sorted(str(key) for key in prompt if key not in _PAIR):
                raise InvalidRequestError(
                    f"a prompt with encoder_prompt holds {' and '.join(_PAIR)} only, not {unknown[0]}"
                )
            given, own = prompt.get("encoder_prompt"), prompt.get("decoder_prompt")
            if given is None:
                raise InvalidRequestError("encoder_prompt is missing: the text that the encoder reads")
        rest: dict[str, Any] = {}
        if isinstance(given, Mapping):
            rest = {key: value for key, value in given.items() if key not in _OF_ENCODER}
            given = {key: value for key, value in given.items() if key in _OF_ENCODER}
        return self._start(own, rest), given

    def _start(self, own: Any, rest: dict[str, Any]) -> Prompt:
        """The decoder's prompt. `rest`: the keys of a prompt that are of no text, such as `cache_salt`."""
        begun: Any = {"prompt_token_ids": self._start_ids if own is None else own}
        if isinstance(own, str):
            begun = {"prompt": own}
        started: Any = {**(own if isinstance(own, Mapping) else begun), **rest}
        return started  # type: ignore[no-any-return]
