"""The race of a draw: every token id has its own noise, and the largest logit plus noise wins.

With Gumbel noise a token wins with its probability (Gumbel, "Statistical theory of extreme values", 1954; Maddison,
Tarlow and Minka, "A* sampling", 2014). The noise depends on the draw's key and the token id alone, so a rounding of the
logits changes the winner only between tokens that are that close; with an inverse CDF it shifts all later borders.
There is no generator to seed, save or advance. A draw gives the same token in any batch, after a preemption, on another
worker and after a sleep.

It uses integers, and float64 in a fixed order without libm, so that every back end gives the same bits: this file,
`ops/cpu/csrc/race.h` and `ops/triton/draw/`.
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lullm.types.draw import Draw

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_ROOT_OF_HALF = 0x3FE6A09E667F3BCD  # the bits of 0.5**0.5 in float64
_LN_2 = 0.6931471805599453
_WORD = 0xFFFFFFFFFFFFFFFF
_WIDEST = 41.0
"""A token whose logit is so far below the best one's cannot win: noise lies between -3.6 and 36.8."""


def keys_of(draws: Sequence[Draw]) -> np.ndarray:
    """[N] int64, 64 bits per draw, from its seed, its sequence's index and its number of output tokens. Host only.

    Each (seed, seq_index) starts its own SplitMix64 stream. The n-th output token takes the n-th number of it, which
    starts the stream of its noise.
    """
    starts = [
        (_stream_of(draw.params.seed, draw.params.seq_index) + (draw.output_len + 1) * GOLDEN_GAMMA) & _WORD
        for draw in draws
    ]
    return mix(np.array(starts, np.uint64)).view(np.int64)


@functools.lru_cache(maxsize=1 << 14)  # it never changes in a sequence's life
def _stream_of(seed: int, seq_index: int) -> int:
    """The start of a sequence's stream, 64 bits.

    Mixed one after the other: with a sum, seed 1 of sequence 0 would equal seed 0 of sequence 1.
    """
    state = np.array([seed & _WORD], np.uint64)
    for addend in (GOLDEN_GAMMA, (seq_index + 1) * GOLDEN_GAMMA & _WORD):
        state = mix(state + np.uint64(addend))
    return int(state[0])


def choose_tokens(logits: Tensor, keys: Tensor) -> Tensor:
    """The token of each row that wins the race, the first of equals. Synchronises.

    Args:
        logits: [N, V] float32, at most 0, and 0 for the best; -inf: cannot be drawn. A row of NaN gives any token.
        keys: [N] int64, see `keys_of`.

    Returns:
        [N] int64; never a token whose logit is -inf, unless all of the row are.
    """
    winners = [_winner(row, key) for row, key in zip(logits, keys, strict=True)]
    return torch.stack(winners) if winners else keys.clone()


def _winner(logits: Tensor, key: Tensor) -> Tensor:
    """The winner of one row [V].

    Only tokens close to winning need their noise computed: with the random bits r as a fraction, it is at most -ln(r).
    Rows are handled one by one and in place, so that they stay in the cache: 2 ms instead of 5 per 150,000 tokens.
    """
    ids = (logits >= -_WIDEST).nonzero().squeeze(1)
    if len(ids) == 0:
        return key.new_zeros(())
    runners = logits.index_select(0, ids)
    bits = _random_bits(key, ids)
    bounds = runners - _shifted(bits, 1, bits).float().clamp_(min=1.0).log_()
    leader = bounds.max(0).indices
    lead = runners[leader] + gumbel_noise(key, ids[leader])
    # 2**63, and a margin for float32's rounding.
    near = (bounds >= lead - 63 * _LN_2 - 1e-3).nonzero().squeeze(1)
    return ids[near[(runners[near].double() + gumbel_noise(key, ids[near])).argmax()]]


def gumbel_noise(keys: Tensor, token_ids: Tensor) -> Tensor:
    """-ln(-ln(1 - x)) float64 for x = (52 random bits + a half) / 2**52: between -3.6 and 36.8.

    Args:
        keys, token_ids: int64, of shapes that broadcast.
    """
    bits = _random_bits(keys, token_ids)
    x = (_shifted(bits, 12, bits).double() + 0.5) * 2.0**-52
    return -_natural_log(-_natural_log(1.0 - x))


def _random_bits(keys: Tensor, token_ids: Tensor) -> Tensor:
    """The `token_id`-th number of the SplitMix64 stream that starts at the key, as int64.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    bits = (token_ids + 1) * _signed(GOLDEN_GAMMA) + keys
    scratch = torch.empty_like(bits)
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        bits.bitwise_xor_(_shifted(bits, shift, scratch)).mul_(_signed(factor))
    return bits.bitwise_xor_(_shifted(bits, 31, scratch))


def _shifted(bits: Tensor, places: int, out: Tensor) -> Tensor:
    """Shift to the right, zeros from the left, into `out`."""
    return torch.bitwise_right_shift(bits, places, out=out).bitwise_and_((1 << 64 - places) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def _natural_log(y: Tensor) -> Tensor:
    """ln(y) of normal float64 y > 0, within 1e-15 of it, near 1 too.

    2 artanh((f - 1) / (f + 1)) for y = f * 2**exponent with f near 1. Every operation rounds by itself.
    """
    bits = y.view(torch.int64)
    exponent = (bits - _ROOT_OF_HALF) >> 52
    f = (bits - (exponent << 52)).view(torch.float64)
    s = (f - 1.0) / (f + 1.0)
    square = s * s
    total = torch.full_like(s, 1 / 17)
    for odd in range(15, 0, -2):
        total = total * square + 1 / odd
    return exponent.double() * _LN_2 + 2.0 * s * total


def mix(bits: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser on a uint64 array (arrays wrap silently, numpy's scalars would warn)."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))
