"""PromptReader: a caller's prompt of any form becomes token ids, and tiles of what is no text."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lullm.config.generation import OutputRules
from lullm.config.json_file import option_object
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.encoder.sounds import SoundInput
from lullm.engine.encoder.texts import TextInput
from lullm.engine.hearing.sounds import HeardInput
from lullm.engine.input.form import prompt_field
from lullm.engine.input.text import TextReader
from lullm.engine.rows.embeds import FIELD as EMBEDS
from lullm.engine.rows.embeds import EmbedsReader
from lullm.engine.vision.pictures import PictureInput, settings_of
from lullm.errors import InvalidRequestError
from lullm.text.reply.replies import Replies
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import Input, Prompt
from lullm.types.vision.tile import TilePlace


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt as the model reads it.

    Args:
        text: None: the prompt was token ids, or rows.
        tiles: of its pictures or sounds, or its rows, in order. They stand in the place of tokens.
        encoded: what an encoder beside the decoder reads.
    """

    text: str | None
    token_ids: list[int]
    tiles: tuple[TilePlace, ...] = ()
    encoded: TilePlace | None = None


class PromptReader:
    """Reads the prompts of one engine. Safe to call from several threads.

    Args:
        rules: of the model's generation_config.json.

    Attributes:
        replies: how the model's answers to conversations are read, which its template may have to know.
    """

    def __init__(self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer, rules: OutputRules) -> None:
        defaults = option_object("default_chat_template_kwargs", config.default_chat_template_kwargs)
        self.replies = Replies(tokenizer, config.tool_call_parser, config.reasoning_parser, config.think, defaults)
        self._text = TextReader(config, model, tokenizer, self.replies)
        self._pictures = PictureInput(config, model, tokenizer)
        self._sounds = HeardInput(config, model, tokenizer)
        self._embeds = EmbedsReader(config, model)
        self._encoder = _encoder_input(model, rules, self._text)

    def read(self, prompt: Input, may_block: bool) -> ReadPrompt:
        """The whole prompt. Rendering a chat template may take seconds, in another process.

        Raises:
            InvalidRequestError: the prompt has another form than this model takes, or its content is wrong.
            WouldBlock: the call would block, and `may_block` is False.
        """
        if self._encoder is None:
            return self._of_decoder(prompt, add_special_tokens=True, may_block=may_block)
        with _named(prompt):
            own, encoded = self._encoder.take(prompt, may_block)
        # The prompt of a decoder beside an encoder begins with words of its own, spelled out.
        return replace(self._of_decoder(own, add_special_tokens=False, may_block=may_block), encoded=encoded)

    def tokenize(self, prompt: Input, add_special_tokens: bool, may_block: bool) -> list[int]:
        """The token ids of a prompt's text. Raises as `read` does."""
        if self._encoder is not None:
            add_special_tokens = add_special_tokens and self._encoder.reads_text
            prompt = self._encoder.split(prompt)[0]
        return self._of_decoder(prompt, add_special_tokens, may_block).token_ids

    def _of_decoder(self, prompt: Input, add_special_tokens: bool, may_block: bool) -> ReadPrompt:
        with _named(prompt):
            if isinstance(prompt, dict) and prompt.get(EMBEDS) is not None:
                return ReadPrompt(*self._embeds.read(prompt, may_block))
            settings = settings_of(prompt)
            prompt, sounds = self._sounds.take(prompt, may_block)
            prompt, pictures = self._pictures.take(prompt, may_block)
            if pictures.is_any:
                sounds = self._sounds.beside_pictures(sounds)
            if settings and sounds and not pictures.is_any:
                raise InvalidRequestError("mm_processor_kwargs are for pictures; a sound is read in one way only")
            text, token_ids = self._text.read(prompt, add_special_tokens, may_block)
            token_ids, seen = self._pictures.place(token_ids, pictures)
            return ReadPrompt(text, *self._sounds.place(token_ids, sounds, seen))


def _encoder_input(model: ModelConfig, rules: OutputRules, text: TextReader) -> SoundInput | TextInput | None:
    """What reads the prompts of an encoder beside the decoder; None: the model has none."""
    encoder = model.encoder
    if encoder is None:
        return None
    if encoder.reads == "audio":
        return SoundInput(encoder)

    def encode(prompt: Prompt, may_block: bool) -> list[int]:
        _, token_ids = text.read(prompt, add_special_tokens=True, may_block=may_block)
        return token_ids

    return TextInput(encoder, rules.starts(encoder.start_ids), model.vocab_size, encode)


@contextlib.contextmanager
def _named(prompt: Input) -> Iterator[None]:
    """Errors that name no field name the prompt's."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error), error.param or prompt_field(prompt), error.code) from None
