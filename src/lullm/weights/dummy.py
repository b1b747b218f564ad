"""Dummy weights: random, but equal in every process. For tests of shapes and speed without a checkpoint."""

import math
import zlib

import torch

from lullm.ops.table import Ops
from lullm.weights.rows.cut import CutRows, clear_gaps, rows_of
from lullm.weights.rows.place import QuantizedRows
from lullm.weights.target import Loadable

_TILE_LEN = 1_048_583  # a prime just above 2**20, so that no two rows of a matrix start at the same place in the tile
_STD = 0.02
_SLAB_LEN = 1 << 22  # weights of a quantized matrix that exist at once


def fill_dummy_weights(model: Loadable, ops: Ops, seed: int = 0) -> None:
    """Fill the materialised parameters: ones for norms, else normal with mean 0 and deviation 0.02.

    The values are a function of `seed` and a parameter's name. A quantized model quantizes the same values, and workers
    that share a model have parts of them. Drawing a number takes much longer than copying one. So one tile of noise is
    drawn, and every parameter repeats it from its own start.
    """
    tile = torch.randn(_TILE_LEN, generator=torch.Generator().manual_seed(seed)) * _STD
    tiles: dict[torch.dtype, torch.Tensor] = {}
    dtype = next(parameter.dtype for _, parameter in model.named_parameters() if parameter.is_floating_point())
    clear_gaps(model.named_parameters(), model.cuts)
    with torch.inference_mode():
        for layer_name, layer in model.named_modules():
            for last, parameter in layer.named_parameters(recurse=False):
                name = f"{layer_name}.{last}"
                if parameter.dim() == 1 and name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                    continue
                position = zlib.crc32(name.encode()) % _TILE_LEN
                rows = rows_of(layer, name, parameter, ops, model.cuts.get(name))
                own = dtype if rows.bits else parameter.dtype
                noise = tiles.setdefault(own, tile.to(own))
                if isinstance(rows, QuantizedRows | CutRows):
                    _write_slabs(rows, noise, position)
                else:
                    _repeat(noise, position, parameter.view(-1))


def _write_slabs(rows: QuantizedRows | CutRows, noise: torch.Tensor, position: int) -> None:
    """Fill all rows from `position` in the noise on, some rows at a time."""
    num_rows, *of_row = rows.shape
    slab = max(1, _SLAB_LEN // math.prod(of_row))
    for first_row in range(0, num_rows, slab):
        values = torch.empty((min(slab, num_rows - first_row), *of_row), dtype=noise.dtype)
        position = _repeat(noise, position, values.view(-1))
        rows.write(values, first_row)


def _repeat(noise: torch.Tensor, position: int, flat: torch.Tensor) -> int:
    """Fill `flat` with the endless repetition of `noise` from `position` on. Returns the position at its end."""
    filled = 0
    while filled < flat.numel():
        length = min(len(noise) - position, flat.numel() - filled)
        flat[filled : filled + length] = noise[position : position + length]
        filled, position = filled + length, (position + length) % len(noise)
    return position
