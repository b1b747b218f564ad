"""Files of sounds: every form of WAV, other formats by another library, broken bytes; long sounds in pieces."""

import random
import sys
import types

import numpy as np
import pytest
from kit.audio.checkpoint import sound
from kit.audio.file import wav

from lullm.audio.source import decoded
from lullm.audio.windows import windows
from lullm.errors import InvalidRequestError, UnsupportedError


@pytest.mark.parametrize(
    ("bits", "is_float"), [(8, False), (16, False), (24, False), (32, False), (32, True), (64, True)]
)
@pytest.mark.parametrize("extends", [False, True])
def test_wav(bits, is_float, extends):
    both = np.stack([sound(0, 0.1), sound(1, 0.1)], axis=1).clip(-1, 1)
    found, rate = decoded(wav(both, 22_050, bits, is_float, extends))
    assert rate == 22_050 and found.dtype == np.float32
    assert np.abs(found - both.mean(axis=1)).max() < 2.0 ** (2 - min(bits, 24))
    [alone, _] = decoded(wav(both[:, 0], 22_050, bits, is_float, extends))
    assert np.abs(alone - both[:, 0]).max() < 2.0 ** (2 - min(bits, 24))


def test_a_stream_that_leaves_its_length_open():
    data = wav(sound(0, 0.01))
    at = data.index(b"data") + 4
    found, _ = decoded(data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :])
    assert len(found) == 160


def test_broken_wavs_are_refused_and_nothing_else_is_raised():
    data, chance = wav(sound(0, 0.01)), random.Random(0)
    with pytest.raises(InvalidRequestError, match="no samples"):
        decoded(data[: data.index(b"data") + 8])
    with pytest.raises(InvalidRequestError, match="bits in the format 17"):
        decoded(data.replace(b"\x01\x00\x01\x00", b"\x11\x00\x01\x00", 1))
    for _ in range(500):
        broken = bytearray(data[: chance.randrange(13, len(data))])
        for _ in range(chance.randrange(1, 5)):
            broken[chance.randrange(12, len(broken))] = chance.randrange(256)
        try:
            found, rate = decoded(bytes(broken))
        except InvalidRequestError:
            continue
        assert found.ndim == 1 and rate > 0


def test_other_formats_need_soundfile(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UnsupportedError, match="lullm\\[audio\\]"):
        decoded(b"fLaC" + bytes(100))


class File:
    """As soundfile's, of a stereo sound that is told in the bytes."""

    samplerate, channels = 8_000, 2

    def __init__(self, source):
        [self.left] = source.getvalue()[4:]
        if not self.left:
            raise RuntimeError("Error opening <_io.BytesIO>: Format not recognised.")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def read(self, num_frames, dtype, always_2d):
        assert (dtype, always_2d) == ("float32", True)
        num_frames = min(num_frames, 1000 * self.left)
        self.left -= num_frames // 1000
        return np.tile(np.array([[0.5, -0.25]], np.float32), (num_frames, 1))


def test_what_soundfile_reads(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", types.SimpleNamespace(SoundFile=File))
    found, rate = decoded(b"fLaC\x03")
    assert rate == 8_000 and found.tolist() == [0.125] * 3000
    with pytest.raises(InvalidRequestError, match="cannot be decoded: Format not recognised"):
        decoded(b"fLaC\x00")


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.001, 3.7, 12.0])
def test_windows_are_all_of_a_sound(seconds):
    samples = sound(2, seconds, 8_000)
    pieces = windows(samples, 8_000, 1.0)
    assert np.array_equal(np.concatenate(pieces), samples)
    assert all(0 < len(piece) <= 8_000 for piece in pieces)
    assert len(pieces) == 1 or min(map(len, pieces[:-1])) >= 8_000 * 5 / 6 - 1


def test_cuts_are_where_it_is_quiet():
    samples = np.ones(60_000, np.float32)
    samples[27_000:27_400] = 0.0
    first, second, *_ = windows(samples, 1_000, 30.0)
    assert 27_000 <= len(first) <= 27_400 and len(second) > 24_000
