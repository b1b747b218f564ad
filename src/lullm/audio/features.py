"""Log-mel features of a sound, as Whisper's encoder reads them (https://arxiv.org/abs/2212.04356).

Frames of 25 ms, one every 10 ms, under a Hann window; energies in triangles on Slaney's mel scale (the Auditory
Toolbox's: linear below 1 kHz, logarithmic above), each with area 1; logarithms within 8 decades of the loudest.
"""

import functools

import numpy as np

SAMPLING_RATE = 16_000
"""Samples per second that the features are made of."""
HOP = 160
"""Samples from one frame to the next."""
_FRAME = 400
_LEAST_ENERGY, _DECADES = 1e-10, 8.0
_LINEAR_HZ, _LINEAR_MELS, _LOG_STEP = 200.0 / 3, 15.0, np.log(6.4) / 27
_BATCH = 500
"""Frames that are transformed at once: 3 MB of numbers."""


def log_mel(samples: np.ndarray, num_mels: int, num_frames: int) -> np.ndarray:
    """The features `[num_mels, num_frames]` float32 of a sound, which silence makes longer.

    Args:
        samples: `[N]` float32 of SAMPLING_RATE, at most `num_frames * HOP`.
    """
    sound = np.zeros(num_frames * HOP, np.float32)
    sound[: len(samples)] = samples
    padded = np.pad(sound, _FRAME // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::HOP][:num_frames]
    window, filters = _hann(), _filters(num_mels)
    energies = np.empty((num_frames, num_mels), np.float64)
    for first in range(0, num_frames, _BATCH):
        spectrum = np.fft.rfft(frames[first : first + _BATCH] * window)
        energies[first : first + _BATCH] = (spectrum.real**2 + spectrum.imag**2) @ filters
    logs = np.log10(np.maximum(energies, _LEAST_ENERGY))
    logs = np.maximum(logs, logs.max() - _DECADES)
    return np.ascontiguousarray(((logs + 4.0) / 4.0).T, dtype=np.float32)


@functools.cache
def _hann() -> np.ndarray:  # [FRAME]
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_FRAME) / _FRAME)


@functools.lru_cache(maxsize=4)
def _filters(num_mels: int) -> np.ndarray:  # [FRAME / 2 + 1, num_mels]
    """The weight of each frequency in each band, from 0 Hz to half of the rate."""
    highest = SAMPLING_RATE / 2
    edges = _hertz(np.linspace(0.0, _mels(highest), num_mels + 2))
    frequencies = np.linspace(0.0, highest, _FRAME // 2 + 1)[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    weights: np.ndarray = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))
    return weights


def _mels(hertz: float) -> float:
    """The mel value of a frequency above 1 kHz."""
    return float(_LINEAR_MELS + np.log(hertz / (_LINEAR_HZ * _LINEAR_MELS)) / _LOG_STEP)


def _hertz(mels: np.ndarray) -> np.ndarray:
    above = _LINEAR_HZ * _LINEAR_MELS * np.exp(_LOG_STEP * (mels - _LINEAR_MELS))
    return np.where(mels < _LINEAR_MELS, _LINEAR_HZ * mels, above)
