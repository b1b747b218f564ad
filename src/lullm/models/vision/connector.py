"""Connectors: from the tower's rows to the decoder's."""

import torch
from torch import Tensor, nn

from lullm.config.vision.vision import MLPConnector, ShuffleConnector, TowerConfig
from lullm.models.vision.tower import ACTIVATIONS, Dense


class MLP(nn.Module):
    """See `MLPConnector`."""

    def __init__(self, config: MLPConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.activation = ACTIVATIONS[config.hidden_act]
        self.linear_1 = Dense(tower.hidden_size, hidden_size, config.has_bias, dtype)
        self.linear_2 = Dense(hidden_size, hidden_size, config.has_bias, dtype)

    def forward(self, x: Tensor) -> Tensor:  # [P, D] -> [P, H]
        out: Tensor = self.linear_2(self.activation(self.linear_1(x)))
        return out


class Shuffle(nn.Module):
    """See `ShuffleConnector`: the rows of neighbours side by side, then one matrix (https://arxiv.org/abs/1609.05158)."""

    def __init__(self, config: ShuffleConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.factor = config.scale_factor
        self.proj = Dense(tower.hidden_size * self.factor**2, hidden_size, False, dtype)

    def forward(self, x: Tensor) -> Tensor:  # [P, D] -> [P / factor^2, H]
        factor, num_sides = self.factor, round(len(x) ** 0.5)
        num_groups = num_sides // factor
        grid = x.view(num_groups, factor, num_groups, factor, -1)  # row of groups, row in it, column of groups, ...
        out: Tensor = self.proj(grid.transpose(1, 2).reshape(num_groups**2, -1))
        return out
