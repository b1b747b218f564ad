"""A sound at another rate: what lies above half of the new rate is left out, the rest stays as it is."""

import math

import numpy as np

from lullm.units import round_up

_MOST_RATE = 1_000_000
_EDGE_S = 0.05
"""Silence around a sound, since a spectrum knows of no ends: what rings over one end would come in at the other."""


def resampled(samples: np.ndarray, rate: int, to_rate: int) -> np.ndarray:
    """`[N]` float32 of `rate` samples per second -> `[N * to_rate / rate]` float32, rounded up. By its spectrum."""
    if rate == to_rate or not len(samples):
        return samples
    divisor = math.gcd(rate, to_rate)
    step, to_step = rate // divisor, to_rate // divisor
    num_wanted = -(-len(samples) * to_step // step)
    edge = round_up(int(_EDGE_S * rate), step)
    sound = np.zeros(round_up(len(samples) + 2 * edge, step))
    sound[edge : edge + len(samples)] = samples
    num_out = len(sound) // step * to_step
    spectrum = np.fft.rfft(sound)
    kept = np.zeros(num_out // 2 + 1, spectrum.dtype)
    num_kept = min(len(kept), len(spectrum)) - (num_out < len(sound))  # what is just half of the new rate goes, too
    kept[:num_kept] = spectrum[:num_kept]
    out = np.fft.irfft(kept, num_out) * (num_out / len(sound))
    first = edge // step * to_step
    return out[first : first + num_wanted].astype(np.float32)


def is_rate(rate: object) -> bool:
    """Whether it can be a sampling rate."""
    return isinstance(rate, int) and not isinstance(rate, bool) and 0 < rate <= _MOST_RATE
