"""HeardInput: takes the sounds out of a caller's prompt, and puts their tiles in the place of tokens.

Both halves are those of transformers' processors: the same tokens, and the same features.
"""

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from lullm.audio.features import SAMPLING_RATE
from lullm.audio.resampling import resampled
from lullm.audio.source import decoded
from lullm.audio.tiling import longest_s, num_rows, sound_tiles, window_s
from lullm.config.hearing.hearing import HearingConfig
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.engine.caller.media_part import with_word
from lullm.engine.encoder.sounds import as_sound
from lullm.engine.hearing.parts import sounds_in, without_sounds
from lullm.engine.vision.pictures import split_at
from lullm.errors import InvalidRequestError
from lullm.text.chat_template import SOUND as PLACE
from lullm.text.template.failure import WouldBlock
from lullm.text.tokenizer import Tokenizer
from lullm.types.request import Conversation, Input
from lullm.types.vision.tile import EDGE_FRAMES, Tile, TilePlace
from lullm.vision.source import SOUND, MediaSource

P = TypeVar("P", bound=Input)
Heard = list[Tile]
"""The windows of a sound."""

_MOST_AT_ONCE = 4
"""Callers whose sounds are read: an hour takes a gigabyte meanwhile."""


class HeardInput:
    """The sounds of one model's prompts. Safe to call from several threads."""

    def __init__(self, config: ResolvedConfig, model: ModelConfig, tokenizer: Tokenizer) -> None:
        self._hearing = model.hearing
        self._reason = model.no_hearing
        self._tokenizer = tokenizer
        self._most = config.limit_mm_per_prompt.audio
        self._max_model_len = config.max_model_len
        self._reading = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._source = MediaSource.of(config)
        self._word = ""
        if self._hearing is not None:
            word = self._hearing.audio_token_id
            self._word = tokenizer.backend.id_to_token(word) or f"the id {word}"
            if self._hearing.spells is not None and tokenizer.chat_template is not None:
                tokenizer.chat_template.spell(PLACE, self._word, self._hearing.spells)

    def take(self, prompt: P, may_block: bool) -> tuple[P, list[Heard]]:
        """The prompt with places instead of sounds, and their tiles, in order. Takes 0.1 s for 30 s of them.

        Raises:
            InvalidRequestError: the model does not hear, or not so many; one is broken, too long, too short or nowhere.
            UnsupportedError: a file is no WAV, and soundfile is not installed.
            WouldBlock: there are sounds, and `may_block` is False.
        """
        given: list[Any] = []
        if isinstance(prompt, Conversation):
            prompt = cast(P, without_sounds(prompt, given))
        elif isinstance(prompt, Mapping) and isinstance(data := prompt.get("multi_modal_data"), Mapping):
            given = sounds_in(data)
            rest = {key: value for key, value in data.items() if key != "audio"}
            prompt = cast(P, {**prompt, "multi_modal_data": rest or None})
        if not given:
            return prompt, []
        if self._hearing is None:
            raise InvalidRequestError(f"this model takes no sounds{': ' * bool(self._reason)}{self._reason}")
        if len(given) > self._most:
            raise InvalidRequestError(
                f"a prompt may have at most {self._most} sounds (limit_mm_per_prompt), not {len(given)}"
            )
        if not may_block:
            raise WouldBlock
        if isinstance(prompt, Conversation) and not self._shows_sounds(prompt):
            raise InvalidRequestError(
                "the chat template of this model has no place for sounds; give one that has (chat_template)"
            )
        prompt = with_word(prompt, self._hearing.numbered, self._word)
        with self._reading:
            return prompt, self._tiled(given, self._hearing)

    def beside_pictures(self, sounds: list[Heard]) -> list[Heard]:
        """The sounds of a prompt with pictures."""
        if self._hearing is None or not self._hearing.tells_pictures:
            return sounds
        return [[tile.beside_pictures() for tile in tiles] for tiles in sounds]

    def place(
        self, token_ids: list[int], sounds: Sequence[Heard], seen: Sequence[TilePlace]
    ) -> tuple[list[int], tuple[TilePlace, ...]]:
        """The ids of a prompt with a token for each row of a sound, and the places of all tiles, those already `seen`
        in it among them.

        Raises InvalidRequestError: the prompt has more or fewer places than there are sounds.
        """
        if self._hearing is None:
            return token_ids, tuple(seen)
        word, num_places = self._hearing.audio_token_id, token_ids.count(self._hearing.audio_token_id)
        if num_places != len(sounds):
            raise InvalidRequestError(
                f"the prompt has {num_places} places for sounds ({self._word}), and {len(sounds)} sounds come with it"
            )
        if not sounds:
            return token_ids, tuple(seen)
        waiting, places = deque(seen), list[TilePlace]()
        expanded, num_read = list[int](), 0
        for tiles, part in zip([[], *sounds], split_at(token_ids, word), strict=True):
            for tile in tiles:
                places.append(TilePlace(tile, len(expanded), self._hearing.rows_of(tile.width - EDGE_FRAMES)))
                expanded += [word] * places[-1].num_rows
            num_read += bool(tiles)  # the word of the sound
            while waiting and waiting[0].start < num_read + len(part):
                place = waiting.popleft()
                places.append(msgspec.structs.replace(place, start=len(expanded) + place.start - num_read))
            expanded += part
            num_read += len(part)
        return expanded, tuple(places)

    def _shows_sounds(self, prompt: Conversation) -> bool:
        template = self._tokenizer.chat_template
        return prompt.template is not None or template is None or template.shows_sounds

    def _tiled(self, given: Sequence[Any], hearing: HearingConfig) -> list[Heard]:
        """Lengths first: what a prompt has no room for is not made."""
        sounds, left = [], self._max_model_len
        for one in given:
            samples, rate = self._samples(one, hearing, left)
            left -= self._rows(samples, rate, hearing, left)
            sounds.append((samples, rate))
        return [sound_tiles(resampled(samples, rate, SAMPLING_RATE), hearing) for samples, rate in sounds]

    def _samples(self, given: Any, hearing: HearingConfig, left: int) -> tuple[np.ndarray, int]:
        """The samples of a sound as it was given, and their rate. `left`: rows for which a prompt has room."""
        if isinstance(given, str):
            given = self._source.read(given, SOUND)
        if not isinstance(given, bytes):
            return as_sound(given)
        num_windows = left // hearing.window_rows + 1
        return decoded(given, min(num_windows * window_s(hearing), longest_s(hearing)))

    def _rows(self, samples: np.ndarray, rate: int, hearing: HearingConfig, left: int) -> int:
        """Raises InvalidRequestError: the sound is too long, or too short for a row."""
        seconds, most_s = len(samples) / rate, longest_s(hearing)
        if seconds > most_s:
            raise InvalidRequestError(
                f"the sound takes {seconds:.1f} s, and the model hears {most_s:g} s at once; cut it into pieces"
            )
        rows = num_rows(len(samples), rate, hearing)
        if not rows:
            raise InvalidRequestError(f"the sound takes {seconds:.3f} s, too short for a row; send a longer one")
        if rows > left:
            raise InvalidRequestError(
                f"the prompt is too long: its sounds alone take more than the {self._max_model_len} tokens of this "
                "model's maximum context length (max_model_len); send shorter sounds, or fewer",
                code="context_length_exceeded",
            )
        return rows
