"""SoundEncoder: from the log-mel features of a sound to rows (Whisper, https://arxiv.org/abs/2212.04356)."""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.layer.encoder import EncoderConfig
from lullm.models.encoder.layers import EncoderLayer
from lullm.models.vision.embedding import Positions
from lullm.nn.linear import meta_parameter
from lullm.nn.norm import LayerNorm
from lullm.ops.table import Ops
from lullm.types.vision.tile import Tile

_WIDTH = 3
_LONGEST_WAVE = 10_000.0
"""Of positions that are not learned, in rows and per 2 pi."""


class Convolution(nn.Module):
    """Over three frames each, every `stride` frames."""

    def __init__(self, num_inputs: int, num_outputs: int, stride: int, dtype: torch.dtype):
        super().__init__()
        self.stride = stride
        self.weight = meta_parameter((num_outputs, num_inputs, _WIDTH), dtype)
        self.bias = meta_parameter((num_outputs,), dtype)

    def forward(self, x: Tensor) -> Tensor:  # [in, frames] -> [out, frames / stride]
        return functional.conv1d(x[None], self.weight, self.bias, self.stride, padding=_WIDTH // 2)[0]


class SoundEncoder(nn.Module):
    """Two convolutions, positions, layers, a norm."""

    waves: Tensor | None

    def __init__(self, config: EncoderConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        self.conv1 = Convolution(config.num_mels, size, 1, dtype)
        self.conv2 = Convolution(size, size, 2, dtype)
        self.embed_positions = Positions((config.max_rows, size), dtype) if config.learns_positions else None
        waves = None if config.learns_positions else waves_of(config.max_rows, size)
        self.register_buffer("waves", waves, persistent=False)
        self.layers = nn.ModuleList(EncoderLayer(config, size, dtype) for _ in range(config.num_layers))
        self.layer_norm = LayerNorm(size, config.layer_norm_eps, dtype)

    def forward(self, tile: Tile, device: torch.device, ops: Ops) -> Tensor:  # [1, R, H]
        """The rows of a sound, see `Model.tile_reader`."""
        return self.layer_norm(self.heard(tile, tile.width, tile.width // 2, device, ops), ops)[None]

    def heard(self, tile: Tile, num_frames: int, num_rows: int, device: torch.device, ops: Ops) -> Tensor:  # [R, H]
        """The first rows behind the last layer, without the norm. They see each other, and none behind them.

        `num_frames`: of the tile, that the convolutions see.
        """
        features = np.frombuffer(tile.pixels, np.float32).reshape(tile.height, tile.width)[:, :num_frames].copy()
        x = torch.from_numpy(features).to(device, self.dtype)
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(x))))
        x = x.T[:num_rows] + self._positions(num_rows)
        for layer in self.layers:
            x = layer(x, ops)
        return x

    def _positions(self, num_rows: int) -> Tensor:  # [R, H]
        if self.embed_positions is not None:
            return self.embed_positions.weight[:num_rows]
        assert self.waves is not None, "one of the two"
        return self.waves[:num_rows].to(self.dtype)


def waves_of(num_rows: int, size: int) -> Tensor:  # [R, H] float32
    """Sines, then cosines, of wavelengths from 2 pi rows to `_LONGEST_WAVE` times as many."""
    half = size // 2
    waves = torch.exp(-math.log(_LONGEST_WAVE) / (half - 1) * torch.arange(half, device="cpu").float())
    angles = torch.arange(num_rows, device="cpu")[:, None] * waves
    return torch.cat([angles.sin(), angles.cos()], 1)
