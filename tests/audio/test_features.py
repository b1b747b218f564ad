"""Features of sounds beside transformers' extractor, and sounds at other rates."""

import numpy as np
import pytest
from kit.audio.checkpoint import sound
from transformers import WhisperFeatureExtractor

from lullm.audio.features import log_mel
from lullm.audio.resampling import resampled


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.0004, 0.7, 2.0])
def test_features_are_those_of_transformers(num_mels, seconds):
    extractor = WhisperFeatureExtractor(num_mels, chunk_length=2)
    heard = sound(1, seconds)
    [expected] = extractor(heard, sampling_rate=16_000, return_tensors="np").input_features
    found = log_mel(heard, num_mels, 200)
    assert found.dtype == np.float32 and found.shape == expected.shape
    assert np.abs(found - expected).max() < 5e-5


def test_silence_has_features():
    assert np.allclose(log_mel(np.zeros(100, np.float32), 80, 100), -1.5)


def tone(rate):
    """A second of 440 Hz that swells and fades."""
    seconds = np.arange(rate) / rate
    return np.sin(2 * np.pi * 440 * seconds) * np.sin(np.pi * seconds) ** 2


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_a_tone_stays_what_it_is(rate):
    found = resampled(tone(rate).astype(np.float32), rate, 16_000)
    assert found.dtype == np.float32 and len(found) == 16_000
    assert np.abs(found - tone(16_000)).max() < 1e-5


def test_what_the_new_rate_cannot_hold_is_left_out():
    rate = 48_000
    high = (np.sin(2 * np.pi * 12_000 * np.arange(rate) / rate) * np.hanning(rate)).astype(np.float32)
    assert np.abs(resampled(high, rate, 16_000)).max() < 1e-3
    assert len(resampled(high[:1], rate, 16_000)) == 1 and len(resampled(high[:0], rate, 16_000)) == 0
