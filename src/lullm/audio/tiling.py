"""From a sound to tiles: the features of its windows, which an encoder reads one by one."""

import numpy as np

from lullm.audio.features import HOP, SAMPLING_RATE, log_mel
from lullm.config.hearing.hearing import HearingConfig
from lullm.types.vision.tile import EDGE_FRAMES, Tile
from lullm.units import cdiv


def window_s(hearing: HearingConfig) -> float:
    """Seconds of a window."""
    return hearing.encoder.num_frames * HOP / SAMPLING_RATE


def num_rows(num_samples: int, rate: int, hearing: HearingConfig) -> int:
    """Rows of the decoder for a sound, from its length alone. One window has no more than `window_rows`."""
    num_frames = _num_frames(num_samples, rate)
    if hearing.fills_windows:
        return cdiv(num_frames, hearing.encoder.num_frames) * hearing.window_rows
    return hearing.rows_of(min(num_frames, hearing.encoder.num_frames))


def _num_frames(num_samples: int, rate: int) -> int:
    return cdiv(cdiv(num_samples * SAMPLING_RATE, rate), HOP)


def sound_tiles(samples: np.ndarray, hearing: HearingConfig) -> list[Tile]:
    """The windows in order. Takes 0.1 s for 30 s.

    Args:
        samples: `[N]` float32 of SAMPLING_RATE; of at most one window, unless silence fills them.
    """
    window, num_frames = hearing.encoder.num_frames, _num_frames(len(samples), SAMPLING_RATE)
    if hearing.fills_windows:
        num_frames = cdiv(num_frames, window) * window
    # What lies behind is silence, which changes no frame before it.
    num_made = num_frames if hearing.fills_windows else min(num_frames + 2 * EDGE_FRAMES, window)
    features = log_mel(samples[: num_made * HOP], hearing.encoder.num_mels, num_made)
    return [
        _tile(features[:, first : first + window], min(num_frames, window)) for first in range(0, num_frames, window)
    ]


def _tile(features: np.ndarray, num_frames: int) -> Tile:
    framed = np.zeros((len(features), num_frames + EDGE_FRAMES), np.float32)
    kept = features[:, : num_frames + EDGE_FRAMES]
    framed[:, : kept.shape[1]] = kept
    return Tile.of(*framed.shape, framed.tobytes())
