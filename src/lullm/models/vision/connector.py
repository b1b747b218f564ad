"""Connectors: from the tower's rows to the decoder's."""

import torch
from torch import Tensor, nn

from lullm.config.vision.vision import MLPConnector, ShuffleConnector, TowerConfig
from lullm.models.vision.tower import ACTIVATIONS, Dense, LayerNorm

_NORM_EPS = 1e-5
"""No file says another."""


class MLP(nn.Module):
    """See `MLPConnector`."""

    def __init__(self, config: MLPConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.activation = ACTIVATIONS[config.hidden_act]
        self.factor = config.scale_factor
        size = tower.hidden_size * self.factor**2
        self.layer_norm = LayerNorm(size, _NORM_EPS, dtype) if config.has_norm else None
        self.linear_1 = Dense(size, hidden_size, config.has_bias, dtype)
        self.linear_2 = Dense(hidden_size, hidden_size, config.has_bias, dtype)

    def forward(self, x: Tensor) -> Tensor:  # [P, D] -> [P / factor^2, H]
        if self.factor > 1:
            x = neighbours(x, self.factor)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        out: Tensor = self.linear_2(self.activation(self.linear_1(x)))
        return out


class Shuffle(nn.Module):
    """See `ShuffleConnector`."""

    def __init__(self, config: ShuffleConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.factor = config.scale_factor
        self.proj = Dense(tower.hidden_size * self.factor**2, hidden_size, False, dtype)

    def forward(self, x: Tensor) -> Tensor:  # [P, D] -> [P / factor^2, H]
        out: Tensor = self.proj(neighbours(x, self.factor))
        return out


def neighbours(x: Tensor, factor: int) -> Tensor:  # [P, D] -> [P / factor^2, factor^2 D]
    """The rows of `factor` x `factor` neighbours in a square, side by side (https://arxiv.org/abs/1609.05158)."""
    num_groups = round(len(x) ** 0.5) // factor
    grid = x.view(num_groups, factor, num_groups, factor, -1)  # row of groups, row in it, column of groups, ...
    return grid.transpose(1, 2).reshape(num_groups**2, -1)
