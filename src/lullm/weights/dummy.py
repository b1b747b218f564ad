"""Dummy weights: random, the same in every process, for trying shapes and speed without a checkpoint."""

import zlib

import torch
from torch import nn

_TILE_LEN = 1_048_583  # a prime just above 2**20: no two rows of a weight matrix are cut alike from the tile
_STD = 0.02


def fill_dummy_weights(model: nn.Module, seed: int = 0) -> None:
    """Fill the materialised parameters: ones for norms, else normal with mean 0 and deviation 0.02.

    The values are a function of `seed` and a parameter's name. Drawing a number takes much longer than copying one,
    so one tile of noise is drawn and repeated, starting elsewhere in it for every parameter.
    """
    tile = torch.randn(_TILE_LEN, generator=torch.Generator().manual_seed(seed)) * _STD
    tiles: dict[torch.dtype, torch.Tensor] = {}
    with torch.inference_mode():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and name.endswith("norm.weight"):
                parameter.fill_(1.0)
                continue
            noise = tiles.setdefault(parameter.dtype, tile.to(parameter.dtype))
            flat = parameter.view(-1)
            position = zlib.crc32(name.encode()) % _TILE_LEN
            filled = 0
            while filled < flat.numel():
                length = min(_TILE_LEN - position, flat.numel() - filled)
                flat[filled : filled + length] = noise[position : position + length]
                filled, position = filled + length, 0
