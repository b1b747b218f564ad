"""WAV files: uncompressed samples of 8 to 32 bits, or floats, of any number of channels.

The standard library's module reads no floats, and before Python 3.12 not the newer header of files of over 16 bits.
"""

import struct
from collections.abc import Callable

import numpy as np

from lullm.audio.resampling import is_rate
from lullm.errors import InvalidRequestError

_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
_MOST_CHANNELS = 64
_HEADER = struct.Struct("<HHIIHH")


def is_wave(data: bytes) -> bool:
    """Whether the bytes begin as a WAV file does."""
    return data[:4] == b"RIFF" and data[8:12] == b"WAVE"


def read_wave(data: bytes) -> tuple[np.ndarray, int]:
    """(samples `[N]` float32, the mean of all channels; samples per second).

    Raises InvalidRequestError: the file is damaged, or its samples are compressed.
    """
    header, samples = _chunks(data)
    if len(header) < _HEADER.size:
        raise InvalidRequestError("the WAV file has no header of its samples")
    kind, num_channels, rate, _, frame_bytes, bits = _HEADER.unpack_from(header)
    if kind == _EXTENSIBLE and len(header) >= 26:
        [kind] = struct.unpack_from("<H", header, 24)
    if not is_rate(rate) or not 1 <= num_channels <= _MOST_CHANNELS:
        raise InvalidRequestError(f"the WAV file has {num_channels} channels of {rate} samples per second")
    width = bits // 8
    if bits % 8 or frame_bytes != width * num_channels or (kind, width) not in _READ:
        raise InvalidRequestError(
            f"the WAV file has samples of {bits} bits in the format {kind}; integers of 8, 16, 24 and 32 bits (1) and "
            "floats of 32 and 64 (3) are read"
        )
    whole = samples[: len(samples) // frame_bytes * frame_bytes]
    frames = _READ[kind, width](whole).reshape(-1, num_channels)
    return frames.mean(axis=1, dtype=np.float32), rate


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    """The header of the samples, and the samples. Writers of streams leave the length of the samples open."""
    header, at = b"", 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        if name == b"data":
            return header, data[at + 8 : at + 8 + size]
        if name == b"fmt ":
            header = data[at + 8 : at + 8 + size]
        at += 8 + size + size % 2
    raise InvalidRequestError("the WAV file has no samples: it is damaged")


def _integers_of_24(samples: bytes) -> np.ndarray:
    """As the upper bytes of integers of 32 bits."""
    wide = np.zeros((len(samples) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(samples, np.uint8).reshape(-1, 3)
    return wide.view("<i4")[:, 0] / np.float32(1 << 31)


_READ: dict[tuple[int, int], Callable[[bytes], np.ndarray]] = {
    (_INTEGERS, 1): lambda samples: (np.frombuffer(samples, np.uint8).astype(np.float32) - 128) / 128,
    (_INTEGERS, 2): lambda samples: np.frombuffer(samples, "<i2") / np.float32(1 << 15),
    (_INTEGERS, 3): _integers_of_24,
    (_INTEGERS, 4): lambda samples: np.frombuffer(samples, "<i4") / np.float32(1 << 31),
    (_FLOATS, 4): lambda samples: np.frombuffer(samples, "<f4"),
    (_FLOATS, 8): lambda samples: np.frombuffer(samples, "<f8"),
}
