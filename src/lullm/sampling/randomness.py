"""Randomness without state: a draw's uniform number is a function of the draw, and picks a token by inverse CDF.

There is no generator to seed, save or advance. A draw gives the same token in any batch, after a preemption, on another
worker and after a sleep.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.types.draw import Draw

_CHUNK_SIZE = 512  # the square root of a usual vocabulary, so that both levels of the search are about equally wide
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms_of(draws: Sequence[Draw]) -> np.ndarray:
    """One number in (0, 1) per draw, from its seed, its sequence's index and its number of output tokens. Host only.

    Each (seed, seq_index) starts a SplitMix64 stream of its own, and the n-th output token takes its n-th number
    (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    seeds = np.array([draw.params.seed & 0xFFFFFFFFFFFFFFFF for draw in draws], np.uint64)
    seq_indices = np.array([draw.params.seq_index for draw in draws], np.uint64)
    output_lens = np.array([draw.output_len for draw in draws], np.uint64)
    one = np.uint64(1)
    # Mixed in turn: with a sum, seed 1 of sequence 0 would equal seed 0 of sequence 1.
    state = _mix(seeds + _GOLDEN_GAMMA)
    state = _mix(state + (seq_indices + one) * _GOLDEN_GAMMA)
    bits = _mix(state + (output_lens + one) * _GOLDEN_GAMMA)
    # 52 bits and a half: the most that a float64 holds below 1 without rounding up to it, and never 0.
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser on a uint64 array (arrays wrap silently, numpy's scalars would warn)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def choose_tokens(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The token of each row where the cumulative probability passes the row's uniform number. Does not synchronise.

    First a chunk of the vocabulary is chosen by the chunks' masses, then a token in it by the rest of the uniform
    number. So a row needs only some hundred sums in float64. Sums over the whole vocabulary in float32 would lose the
    tokens whose probability is below the rounding of a sum near 1.

    Args:
        probs: [N, V] float32, not negative; rows need not add up to 1. Rows with NaN give an arbitrary token.
        uniforms: [N] float64 in (0, 1).

    Returns:
        [N] int64; never a token of probability 0, unless all of the row are.
    """
    vocab_size = probs.shape[1]
    num_chunks, tail_len = divmod(vocab_size, _CHUNK_SIZE)
    body, tail = probs.split([vocab_size - tail_len, tail_len], dim=1)
    masses = torch.cat([body.unflatten(1, (num_chunks, _CHUNK_SIZE)).sum(-1), tail.sum(-1, keepdim=True)], dim=1)
    chunk, rest = _invert_cdf(masses, uniforms.unsqueeze(1))  # [N, 1], [N, 1]
    ids = chunk * _CHUNK_SIZE + torch.arange(_CHUNK_SIZE, device=probs.device)  # [N, chunk size]
    chunk_probs = probs.gather(1, ids.clamp(max=vocab_size - 1)).masked_fill(ids >= vocab_size, 0.0)
    place, _ = _invert_cdf(chunk_probs, rest)
    return (chunk * _CHUNK_SIZE + place).clamp(max=vocab_size - 1).squeeze(1)


def _invert_cdf(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Choose an index per row [N, 1] in proportion to `weights` [N, K]; also the uniform number left within it."""
    cumulative = weights.double().cumsum(-1)
    drawable = weights > 0
    # The largest sum at a drawable index, not the last sum: a device may add in a different order for each position,
    # and the target must stay below the sum of a drawable index.
    total = cumulative.where(drawable, 0.0).amax(-1, keepdim=True)
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    index = ((cumulative > target) & drawable).to(torch.uint8).argmax(-1, keepdim=True)  # the first that holds
    weight = weights.gather(-1, index).double()
    rest = (target - (cumulative.gather(-1, index) - weight)) / weight
    return index, rest.clamp(0.0, 1.0)
