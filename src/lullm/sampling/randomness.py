"""Randomness without state: the key of a draw's noise is a function of the draw.

There is no generator to seed, save or advance. A draw gives the same token in any batch, after a preemption, on another
worker and after a sleep.
"""

from collections.abc import Sequence

import numpy as np

from lullm.sampling.race import GOLDEN_GAMMA, mix
from lullm.types.draw import Draw


def keys_of(draws: Sequence[Draw]) -> np.ndarray:
    """[N] int64, 64 bits per draw, from its seed, its sequence's index and its number of output tokens. Host only.

    Each (seed, seq_index) starts a SplitMix64 stream of its own, and the n-th output token takes its n-th number, which
    starts the stream of its noise (`race`).
    """
    seeds = np.array([draw.params.seed & 0xFFFFFFFFFFFFFFFF for draw in draws], np.uint64)
    seq_indices = np.array([draw.params.seq_index for draw in draws], np.uint64)
    output_lens = np.array([draw.output_len for draw in draws], np.uint64)
    one, gamma = np.uint64(1), np.uint64(GOLDEN_GAMMA)
    # Mixed in turn: with a sum, seed 1 of sequence 0 would equal seed 0 of sequence 1.
    state = mix(seeds + gamma)
    state = mix(state + (seq_indices + one) * gamma)
    return mix(state + (output_lens + one) * gamma).view(np.int64)
