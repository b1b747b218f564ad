"""Log-mel features as Kaldi's filter banks have them, for Phi-4-multimodal (https://arxiv.org/abs/2503.01743).

Frames of 25 ms, one every 10 ms, none beyond the sound's end; high frequencies are raised within each, then comes a
Hamming window; energies in triangles of height 1, whose sides are straight on the mel scale; natural logarithms.
"""

import functools

import numpy as np

from lullm.audio.features import HOP, SAMPLING_RATE

_FRAME, _NUM_POINTS = 400, 512
_RAISED = 0.97
_AMPLITUDE = 32768.0
"""The features are of samples of 16 bits."""
_LEAST_ENERGY = 1.0
_HIGHEST_HZ = 7690.0
_BATCH = 500


def num_whole_frames(num_samples: int) -> int:
    """Frames that lie within a sound."""
    return max((num_samples - _FRAME) // HOP + 1, 0)


def log_filter_banks(samples: np.ndarray, num_mels: int) -> np.ndarray:
    """The features `[num_mels, frames]` float32 of a sound `[N]` float32 of SAMPLING_RATE."""
    num_frames = num_whole_frames(len(samples))
    features = np.empty((num_frames, num_mels), np.float32)
    if not num_frames:
        return features.T
    frames = np.lib.stride_tricks.sliding_window_view(samples, _FRAME)[::HOP]
    window, filters = np.hamming(_FRAME), _filters(num_mels)
    for first in range(0, num_frames, _BATCH):
        part = frames[first : first + _BATCH].astype(np.float32)
        before = np.concatenate([part[:, :1], part[:, :-1]], 1)  # of the first sample it is itself
        raised = (part - np.float32(_RAISED) * before) * np.float32(_AMPLITUDE)
        spectrum = np.fft.rfft(raised * window, n=_NUM_POINTS).astype(np.complex64)
        energies = np.abs(spectrum) ** 2 @ filters
        features[first : first + _BATCH] = np.log(np.maximum(energies, np.float32(_LEAST_ENERGY)))
    return np.ascontiguousarray(features.T)


@functools.lru_cache(maxsize=4)
def _filters(num_mels: int) -> np.ndarray:  # [_NUM_POINTS / 2 + 1, num_mels] float32
    """The weight of each frequency in each band."""
    edges = np.linspace(0.0, float(_mels(np.array(_HIGHEST_HZ))), num_mels + 2)
    places = _mels(np.arange(_NUM_POINTS // 2 + 1) * (SAMPLING_RATE / _NUM_POINTS))[:, None]
    low, middle, high = edges[:-2], edges[1:-1], edges[2:]
    rising, falling = (places - low) / (middle - low), (high - places) / (high - middle)
    weights: np.ndarray = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    return weights


def _mels(hertz: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = 1127.0 * np.log1p(hertz / 700.0)
    return scaled
