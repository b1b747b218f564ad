"""From a sound to tiles: the features of its windows, which an encoder reads one by one."""

import numpy as np

from lullm.audio.features import HOP, SAMPLING_RATE, log_mel
from lullm.audio.filter_banks import log_filter_banks, num_whole_frames
from lullm.audio.source import MOST_S
from lullm.config.hearing.hearing import HearingConfig
from lullm.types.vision.tile import EDGE_FRAMES, Tile
from lullm.units import cdiv


def window_s(hearing: HearingConfig) -> float:
    """Seconds of a window."""
    return hearing.encoder.num_frames * HOP / SAMPLING_RATE


def longest_s(hearing: HearingConfig) -> float:
    """Seconds of a sound that the model hears at once."""
    if hearing.windows == "one":
        return window_s(hearing)
    return min(hearing.most_frames * HOP / SAMPLING_RATE, MOST_S) if hearing.windows == "cut" else MOST_S


def num_rows(num_samples: int, rate: int, hearing: HearingConfig) -> int:
    """Rows of the decoder for a sound, from its length alone."""
    if hearing.features == "filter_banks":
        return hearing.rows_of_sound(num_whole_frames(cdiv(num_samples * SAMPLING_RATE, rate)))
    return hearing.rows_of_sound(_num_frames(num_samples, rate))


def _num_frames(num_samples: int, rate: int) -> int:
    return cdiv(cdiv(num_samples * SAMPLING_RATE, rate), HOP)


def sound_tiles(samples: np.ndarray, hearing: HearingConfig) -> list[Tile]:
    """The windows in order. Takes 0.1 s for 30 s.

    Args:
        samples: `[N]` float32 of SAMPLING_RATE, of at most `longest_s`.
    """
    if hearing.features == "filter_banks":
        banks = log_filter_banks(samples, hearing.encoder.num_mels)
        return [_tile(banks, banks.shape[1], 0)]
    window, num_frames = hearing.encoder.num_frames, _num_frames(len(samples), SAMPLING_RATE)
    if hearing.windows == "filled":
        num_frames = cdiv(num_frames, window) * window
    # What lies behind is silence, which changes no frame before it.
    num_behind = min(2 * EDGE_FRAMES, _most_frames(hearing, num_frames) - num_frames)
    num_made = num_frames + num_behind
    features = log_mel(samples[: num_made * HOP], hearing.encoder.num_mels, num_made)
    # What a last window has too little of for a row is left out.
    starts = [first for first in range(0, num_frames, window) if not first or hearing.rows_of(num_frames - first)]
    num_seen = EDGE_FRAMES if hearing.windows == "one" else 0
    return [_tile(features[:, first:], min(num_frames - first, window), num_seen) for first in starts]


def _most_frames(hearing: HearingConfig, num_frames: int) -> int:
    """The frames that a sound and the silence behind it have at most."""
    if hearing.windows == "one":
        return hearing.encoder.num_frames
    return max(hearing.most_frames, num_frames) if hearing.windows == "cut" else num_frames


def _tile(features: np.ndarray, num_frames: int, num_seen: int) -> Tile:
    """The first frames, and behind them, of EDGE_FRAMES, those that are seen."""
    framed = np.zeros((len(features), num_frames + EDGE_FRAMES), np.float32)
    kept = features[:, : num_frames + num_seen]
    framed[:, : kept.shape[1]] = kept
    return Tile.of(*framed.shape, framed.tobytes())
