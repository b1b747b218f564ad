"""Dummy weights: random, the same in every process, for trying shapes and speed without a checkpoint."""

import zlib

import torch
from torch import nn

from lullm.weights.quantization import QuantizedRows, writable

_TILE_LEN = 1_048_583  # a prime just above 2**20: no two rows of a weight matrix are cut alike from the tile
_STD = 0.02
_SLAB_LEN = 1 << 22  # weights of a quantized matrix that exist at once


def fill_dummy_weights(model: nn.Module, seed: int = 0) -> None:
    """Fill the materialised parameters: ones for norms, else normal with mean 0 and deviation 0.02.

    The values are a function of `seed` and a parameter's name; a quantized model is that of the same values. Drawing a
    number takes much longer than copying one, so one tile of noise is drawn and repeated, starting elsewhere in it for
    every parameter.
    """
    tile = torch.randn(_TILE_LEN, generator=torch.Generator().manual_seed(seed)) * _STD
    tiles: dict[torch.dtype, torch.Tensor] = {}
    dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    with torch.inference_mode():
        for layer_name, layer in model.named_modules():
            for last, parameter in layer.named_parameters(recurse=False):
                name = f"{layer_name}.{last}"
                if parameter.dim() == 1 and name.endswith("norm.weight"):
                    parameter.fill_(1.0)
                    continue
                position = zlib.crc32(name.encode()) % _TILE_LEN
                rows = writable(layer, name, parameter)
                if isinstance(rows, QuantizedRows):
                    noise = tiles.setdefault(dtype, tile.to(dtype))
                    for part in rows.split(max(1, _SLAB_LEN // rows.shape[1])):
                        values = torch.empty(part.shape, dtype=dtype)
                        position = _repeat(noise, position, values.view(-1))
                        part.copy_(values)
                else:
                    noise = tiles.setdefault(parameter.dtype, tile.to(parameter.dtype))
                    _repeat(noise, position, rows.view(-1))


def _repeat(noise: torch.Tensor, position: int, flat: torch.Tensor) -> int:
    """Fill `flat` with the endless repetition of `noise` from `position` on; where in `noise` that ended."""
    filled = 0
    while filled < flat.numel():
        length = min(len(noise) - position, flat.numel() - filled)
        flat[filled : filled + length] = noise[position : position + length]
        filled, position = filled + length, (position + length) % len(noise)
    return position
