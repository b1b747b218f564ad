"""From the bytes of a file to samples: WAV by itself, other formats by soundfile, if it is installed."""

import importlib
import io
from typing import Any

import numpy as np

from lullm.audio.resampling import is_rate
from lullm.audio.wave import is_wave, read_wave
from lullm.errors import InvalidRequestError, UnsupportedError

MOST_S = 3600
"""Seconds of a file."""
_BLOCK_FRAMES = 1 << 20


def decoded(data: bytes, most_s: float = MOST_S) -> tuple[np.ndarray, int]:
    """(samples `[N]` float32 of one channel, samples per second) of a file. Takes milliseconds to seconds.

    Raises:
        InvalidRequestError: it is broken, empty, or longer than `most_s` seconds.
        UnsupportedError: it is no WAV file, and soundfile is not installed.
    """
    samples, rate = read_wave(data) if is_wave(data) else _read_other(data, most_s)
    if not len(samples):
        raise InvalidRequestError("the sound has no samples")
    if len(samples) > most_s * rate:
        raise InvalidRequestError(
            f"the sound takes {len(samples) / rate:.0f} s, more than {most_s:g}; send it in pieces"
        )
    if not np.isfinite(samples).all():
        raise InvalidRequestError("some of the sound's samples are not finite")
    return samples, rate


def _read_other(data: bytes, most_s: float) -> tuple[np.ndarray, int]:
    try:
        soundfile: Any = importlib.import_module("soundfile")
    except (ImportError, OSError):
        raise UnsupportedError(
            "the file is no WAV file; install soundfile (pip install 'lullm[audio]') for FLAC, MP3 "
            "and OGG, or send WAV (ffmpeg -i FILE -ar 16000 -ac 1 sound.wav)"
        ) from None
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate, num_channels, found = file.samplerate, file.channels, []
            if not is_rate(rate):
                raise InvalidRequestError(f"the sound has {rate} samples per second")
            # A file of few bytes may say that it is long, so it is read in parts.
            most, num_frames = (most_s + 1) * rate, 0
            while num_frames < most and len(block := file.read(_BLOCK_FRAMES // num_channels, "float32", True)):
                found.append(block.mean(axis=1, dtype=np.float32))
                num_frames += len(block)
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        reason = str(error).rpartition(": ")[2]  # in front, the name of an object in memory
        raise InvalidRequestError(f"the sound cannot be decoded: {reason}") from None
    return np.concatenate(found) if found else np.empty(0, np.float32), rate
