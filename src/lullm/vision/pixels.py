"""A tile's bytes as the numbers that a tower reads."""

import functools

import numpy as np

from lullm.config.vision.form import PictureForm
from lullm.types.vision.tile import Tile


def pixel_values(tile: Tile, form: PictureForm) -> np.ndarray:
    """`[F, 3, height, width]` float32, rescaled and normalized: the bits of transformers' image processors.

    F: frames of a film; 1 of a still picture.
    """
    pixels = np.frombuffer(tile.pixels, np.uint8).reshape(max(tile.num_frames, 1), tile.height, tile.width, 3)
    table = _table(form.rescale_factor, form.image_mean, form.image_std)
    return np.stack([table[channel][pixels[..., channel]] for channel in range(3)], 1)


@functools.lru_cache(maxsize=8)
def _table(factor: float, mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray:
    """`[3, 256]`: the number of each byte, by channel. Rounded as it is there: after the product, and in float32."""
    values = (np.arange(256, dtype=np.uint8).astype(np.float64) * factor).astype(np.float32)
    means, stds = (np.array(given, np.float32)[:, None] for given in (mean, std))
    table: np.ndarray = (values - means) / stds
    return table
