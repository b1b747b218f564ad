"""When the tokens of a text are said: a path through what they attend to in a sound, by dynamic time warping.

The heads of `EncoderConfig.alignment_heads` attend to where a sound has what is written down. Of each the weights are
made comparable over the text's tokens, and smoothed over time; the mean of all heads is then followed by the path, from
the first token at the sound's beginning to the last one at its end, along which it is largest
(https://arxiv.org/abs/2212.04356 and Whisper's own program; https://arxiv.org/abs/cs/0603120 for the method).
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

_BOTH, _TOKEN, _ROW = 0, 1, 2
"""How the path goes on: to the next token and row, to the next token, to the next row."""


def token_rows(weights: np.ndarray, filter_width: int) -> list[int]:
    """The encoder's row at which each token begins, ascending.

    Args:
        weights: `[T, heads, R]` float32: what T tokens attend to in the R rows that have a sound.
        filter_width: odd, see `EncoderConfig.median_filter_width`.
    """
    num_tokens, num_heads, num_rows = weights.shape
    total = np.zeros((num_tokens, num_rows))
    for head in range(num_heads):
        total += _smoothed(_standardized(weights[:, head]), filter_width)
    return _first_rows(_path_steps(-total / num_heads))


def _standardized(weights: np.ndarray) -> np.ndarray:  # [T, R] -> [T, R]
    """Mean 0 and deviation 1 in each row over all tokens: rows to which all of them attend tell nothing."""
    centred = weights - weights.mean(0, dtype=np.float64)
    deviation = np.sqrt(np.square(centred).mean(0))
    found: np.ndarray = np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation > 0)
    return found.astype(np.float32)  # as the weights are; medians of float64 take 1.5 times as long


def _smoothed(values: np.ndarray, width: int) -> np.ndarray:  # [T, R] -> [T, R]
    """The median of each value and those around it; the ends are mirrored."""
    reach = width // 2
    if values.shape[1] <= reach:
        return values
    padded = np.pad(values, ((0, 0), (reach, reach)), mode="reflect")
    medians: np.ndarray = np.partition(sliding_window_view(padded, width, axis=1), reach, axis=-1)[..., reach]
    return medians


def _path_steps(costs: np.ndarray) -> np.ndarray:  # [T, R] -> [T + 1, R + 1]
    """By token and row, each counted from 1: the last step of the cheapest path to there.

    Along a diagonal no cell needs another one, so each is computed at once.
    """
    num_tokens, num_rows = costs.shape
    totals = np.full((num_tokens + 1, num_rows + 1), np.inf, np.float32)
    totals[0, 0] = 0.0
    steps = np.full(totals.shape, _ROW, np.int8)
    for diagonal in range(2, num_tokens + num_rows + 1):
        token = np.arange(max(1, diagonal - num_rows), min(num_tokens, diagonal - 1) + 1)
        row = diagonal - token
        both, of_token, of_row = totals[token - 1, row - 1], totals[token - 1, row], totals[token, row - 1]
        takes_both = (both < of_token) & (both < of_row)
        takes_token = (of_token < both) & (of_token < of_row)
        before = np.where(takes_both, both, np.where(takes_token, of_token, of_row))
        totals[token, row] = costs[token - 1, row - 1] + before
        steps[token, row] = np.where(takes_both, _BOTH, np.where(takes_token, _TOKEN, _ROW))
    return steps


def _first_rows(steps: np.ndarray) -> list[int]:
    """The first row of each token on the path, from its end back."""
    token, row = steps.shape[0] - 1, steps.shape[1] - 1
    found = [0] * token
    while token > 0 and row > 0:
        found[token - 1] = row - 1
        step = steps[token, row]
        token -= int(step != _ROW)
        row -= int(step != _TOKEN)
    return found
