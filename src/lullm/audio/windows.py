"""A long sound in pieces that a model hears at once, cut where it is quiet."""

import numpy as np

_SEARCH_S = 5.0
"""At the end of a piece: where a quiet place is looked for."""
_QUIET_S = 0.1


def windows(samples: np.ndarray, rate: int, most_s: float) -> list[np.ndarray]:
    """The pieces of a sound `[N]`, in order, each of at most `most_s` seconds; together they are all of it.

    A cut is in the middle of the quietest tenth of a second in the last 5 s of a piece (or in its last sixth).
    """
    most = int(most_s * rate)
    search, quiet = int(min(_SEARCH_S, most_s / 6) * rate), max(int(_QUIET_S * rate), 1)
    found, first = [], 0
    while len(samples) - first > most:
        start = first + most - search
        energy = np.add.reduceat(samples[start : first + most].astype(np.float64) ** 2, np.arange(0, search, quiet))
        whole = energy[: max(search // quiet, 1)]
        cut = start + min(int(whole.argmin()) * quiet + quiet // 2, search - 1)
        cut = max(cut, first + 1)
        found.append(samples[first:cut])
        first = cut
    return [*found, samples[first:]]
