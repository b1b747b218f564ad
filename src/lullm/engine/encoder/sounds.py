"""SoundInput: takes a sound out of a caller's prompt, and makes what the encoder reads of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lullm.audio.features import HOP, SAMPLING_RATE, log_mel
from lullm.audio.resampling import is_rate, resampled
from lullm.config.layer.encoder import EncoderConfig
from lullm.errors import InvalidRequestError
from lullm.text.template.failure import WouldBlock
from lullm.types.request import Conversation, Input, Prompt, TextPair
from lullm.types.vision.tile import Tile, TilePlace

_PAIR = ("encoder_prompt", "decoder_prompt")
_FORM = "a prompt is {'prompt': text, 'multi_modal_data': {'audio': (samples, sampling rate)}}"


class SoundInput:
    """What the encoder of one model reads. Safe to call from several threads."""

    reads_text = False

    def __init__(self, encoder: EncoderConfig):
        self._encoder = encoder
        self._most_s = encoder.num_frames * HOP / SAMPLING_RATE

    def take(self, prompt: Input, may_block: bool) -> tuple[Prompt, TilePlace]:
        """The decoder's prompt, and what the encoder reads. Features of a sound take 0.1 s.

        Raises:
            InvalidRequestError: the prompt has no sound, or several; or it is none, is too long, or has another form.
            WouldBlock: `may_block` is False.
        """
        own, given = self.split(prompt)
        if given is None:
            raise InvalidRequestError(f"this model writes down what it hears, and the prompt has no sound: {_FORM}")
        if not may_block:
            raise WouldBlock
        return own, self._read(given)

    def split(self, prompt: Input) -> tuple[Prompt, Any]:
        """The decoder's prompt, and the sound as it was given; None: there is none. Raises InvalidRequestError."""
        if isinstance(prompt, Conversation | TextPair):
            raise InvalidRequestError(f"this model takes a sound and no conversation: {_FORM}")
        if not isinstance(prompt, Mapping):
            return prompt, None
        own: Any = prompt
        data, settings = prompt.get("multi_modal_data"), prompt.get("mm_processor_kwargs")
        if any(name in prompt for name in _PAIR):
            own, data, settings = _both_prompts(prompt)
        if settings:
            raise InvalidRequestError("mm_processor_kwargs are for pictures; a sound is read in one way only")
        if isinstance(own, Mapping):
            own = {key: value for key, value in own.items() if key not in ("multi_modal_data", "mm_processor_kwargs")}
        return own, _sound_in(data)

    def _read(self, given: Any) -> TilePlace:
        samples, rate = as_sound(given)
        if len(samples) > self._most_s * rate:
            raise InvalidRequestError(
                f"the sound takes {len(samples) / rate:.1f} s, and the model hears {self._most_s:g} s at once; cut it "
                "into pieces (POST /v1/audio/transcriptions does)"
            )
        heard = resampled(samples, rate, SAMPLING_RATE)[: self._encoder.num_frames * HOP]
        num_mels, num_frames = self._encoder.num_mels, self._encoder.num_frames
        features = log_mel(heard, num_mels, num_frames)
        return TilePlace(Tile.of(num_mels, num_frames, features.tobytes()), 0, self._encoder.max_rows)


def as_sound(given: Any) -> tuple[np.ndarray, int]:
    """(samples `[N]` float32, samples per second) of a caller's sound: an array, or a pair of it and its rate.

    Raises InvalidRequestError: it is none, or not of one channel.
    """
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2 and not isinstance(given[0], (int, float))
    values, rate = given if is_pair else (given, SAMPLING_RATE)
    rate = int(rate) if isinstance(rate, (np.integer, float)) and rate == int(rate) else rate
    if not is_rate(rate):
        raise InvalidRequestError(f"a sampling rate is an integer of samples per second, not {rate!r}")
    try:
        samples = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequestError(f"a sound is an array of samples: {error}") from None
    if samples.ndim != 1:
        raise InvalidRequestError(
            f"a sound has one channel, an array of one dimension, not {samples.ndim}; take the mean of its channels"
        )
    if samples.dtype.kind != "f":
        raise InvalidRequestError(
            f"samples are floats from -1 to 1, not {samples.dtype}; divide those of int16 by 32768"
        )
    if not len(samples):
        raise InvalidRequestError("the sound has no samples")
    if not np.isfinite(samples).all():
        raise InvalidRequestError("some of the sound's samples are not finite")
    return samples.astype(np.float32), rate


def _both_prompts(prompt: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """(the decoder's prompt, the encoder's data, its settings) of vLLM's form with both named."""
    if unknown := sorted(str(key) for key in prompt if key not in _PAIR):
        raise InvalidRequestError(f"a prompt with encoder_prompt holds {' and '.join(_PAIR)} only, not {unknown[0]}")
    encoder, decoder = (prompt.get(name) for name in _PAIR)
    if decoder is None:
        raise InvalidRequestError("decoder_prompt is missing: the text or the token ids with which the output begins")
    if not isinstance(encoder, Mapping):
        raise InvalidRequestError("encoder_prompt is {'prompt': '', 'multi_modal_data': {'audio': ...}}")
    if encoder.get("prompt") or encoder.get("prompt_token_ids"):
        raise InvalidRequestError("encoder_prompt has a sound and no text; the text belongs into decoder_prompt")
    if isinstance(decoder, Mapping) and decoder.get("multi_modal_data") is not None:
        raise InvalidRequestError("the sound belongs into encoder_prompt, not into decoder_prompt")
    return decoder, encoder.get("multi_modal_data"), encoder.get("mm_processor_kwargs")


def _sound_in(data: Any) -> Any:
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise InvalidRequestError(f"multi_modal_data is {{'audio': sound}}, not {type(data).__name__}")
    others = [str(key) for key, value in data.items() if key != "audio" and value is not None]
    if others:
        raise InvalidRequestError(f"this model hears, and takes 'audio' only, not {', '.join(others)}")
    given = data.get("audio")
    if not isinstance(given, list) or not given or isinstance(given[0], (int, float)):
        return given
    if len(given) != 1:
        raise InvalidRequestError(f"a prompt has one sound, not {len(given)}")
    return given[0]
