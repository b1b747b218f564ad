"""Connectors: from the tower's rows to the decoder's."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import (
    Connector,
    GatedConnector,
    MeanConnector,
    MergeConnector,
    MLPConnector,
    PoolConnector,
    ShuffleConnector,
    TowerConfig,
)
from lullm.models.vision.parts import activate, dense
from lullm.models.vision.tower import TowerMLP
from lullm.nn.linear import meta_parameter
from lullm.nn.norm import LayerNorm, RMSNorm, normed
from lullm.ops.table import Ops

_GATED_NORM_EPS = 1e-5
"""Whatever the tower's norms have."""


class MLP(nn.Module):
    """See `MLPConnector`."""

    def __init__(self, config: MLPConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.activation = config.hidden_act
        self.factor = config.scale_factor
        size = tower.hidden_size * self.factor**2
        self.norms_patches = config.norms_patches
        normed_size = tower.hidden_size if config.norms_patches else size
        self.layer_norm = LayerNorm(normed_size, config.norm_eps, dtype) if config.has_norm else None
        middle = size if config.keeps_width else hidden_size
        self.linear_1 = dense(size, middle, config.has_bias, dtype)
        self.linear_2 = dense(middle, hidden_size, config.has_bias, dtype)

    def forward(self, x: Tensor, num_columns: int, ops: Ops) -> Tensor:  # [P, D] -> [P / factor^2, H]
        if self.norms_patches:
            x = normed(self.layer_norm, x, ops)
        if self.factor > 1:
            x = neighbours(x, num_columns, self.factor)
        if not self.norms_patches:
            x = normed(self.layer_norm, x, ops)
        out: Tensor = self.linear_2(activate(self.linear_1(x, ops), self.activation, ops), ops)
        return out


class Shuffle(nn.Module):
    """See `ShuffleConnector`."""

    def __init__(self, config: ShuffleConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.factor = config.scale_factor
        self.proj = dense(tower.hidden_size * self.factor**2, hidden_size, False, dtype)

    def forward(self, x: Tensor, num_columns: int, ops: Ops) -> Tensor:  # [P, D] -> [P / factor^2, H]
        out: Tensor = self.proj(neighbours(x, num_columns, self.factor), ops)
        return out


class Pool(nn.Module):
    """See `PoolConnector`."""

    def __init__(self, config: PoolConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.factor = config.scale_factor
        self.norm = RMSNorm(tower.hidden_size, config.norm_eps, dtype)
        self.projection = meta_parameter((tower.hidden_size, hidden_size), dtype)  # as checkpoints hold it

    def forward(self, x: Tensor, num_columns: int, ops: Ops) -> Tensor:  # [P, D] -> [P / factor^2, H]
        out: Tensor = self.norm(mean_of(x, num_columns, self.factor), ops) @ self.projection
        return out


class Mean(nn.Module):
    """See `MeanConnector`. Means times `scale` may exceed float16, so they are float32 until the norm."""

    def __init__(self, config: MeanConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.factor, self.scale, size = config.scale_factor, config.scale, tower.hidden_size
        self.std_bias, self.std_scale = (
            meta_parameter((size,), dtype) if config.is_standardized else None for _ in range(2)
        )
        self.norm = RMSNorm(size, config.norm_eps, dtype, has_weight=False)
        self.projection = dense(size, hidden_size, False, dtype)

    def forward(self, x: Tensor, num_columns: int, ops: Ops) -> Tensor:  # [P, D] -> [P / factor^2, H]
        means = mean_of(x, num_columns, self.factor).float() * self.scale
        if self.std_bias is not None and self.std_scale is not None:
            means = (means - self.std_bias.float()) * self.std_scale.float()
        out: Tensor = self.projection(self.norm(means.to(x.dtype), ops), ops)
        return out


class Merge(nn.Module):
    """See `MergeConnector`."""

    def __init__(self, config: MergeConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.activation, self.factor, size = config.hidden_act, config.scale_factor, tower.hidden_size
        self.norm = RMSNorm(size, config.norm_eps, dtype)
        self.merging_layer = dense(size * self.factor**2, size, False, dtype)
        self.linear_1 = dense(size, hidden_size, config.has_bias, dtype)
        self.linear_2 = dense(hidden_size, hidden_size, config.has_bias, dtype)

    def forward(self, x: Tensor, num_columns: int, ops: Ops) -> Tensor:  # [P, D] -> [P / factor^2, H]
        merged = self.merging_layer(by_element(self.norm(x, ops), num_columns, self.factor), ops)
        out: Tensor = self.linear_2(activate(self.linear_1(merged, ops), self.activation, ops), ops)
        return out


class Gated(nn.Module):
    """See `GatedConnector`."""

    def __init__(self, config: GatedConnector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.factor = config.scale_factor
        self.downsample = Downsample(tower.hidden_size, hidden_size, self.factor, dtype)
        self.proj = dense(hidden_size, hidden_size, False, dtype)
        self.layer_norm = LayerNorm(hidden_size, _GATED_NORM_EPS, dtype)
        wide = replace(tower, hidden_size=hidden_size, intermediate_size=config.intermediate_size, has_bias=False)
        self.mlp = TowerMLP(wide, dtype)

    def forward(self, x: Tensor, num_columns: int, ops: Ops) -> Tensor:  # [P, D] -> [P / factor^2, H]
        rows = self.proj(self.downsample(by_element(x, num_columns, self.factor)), ops)
        out: Tensor = self.mlp(activate(self.layer_norm(rows, ops), "gelu", ops), ops)
        return out


class Downsample(nn.Module):
    """A convolution whose stride is its width, as one product."""

    def __init__(self, size: int, hidden_size: int, factor: int, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((hidden_size, size, factor, factor), dtype)
        self.bias = meta_parameter((hidden_size,), dtype)

    def forward(self, x: Tensor) -> Tensor:  # [R, D * factor^2] -> [R, H]
        return functional.linear(x, self.weight.flatten(1), self.bias)


def mean_of(x: Tensor, num_columns: int, factor: int) -> Tensor:  # [P, D] -> [P / factor^2, D]
    """The mean of `factor` x `factor` neighbours."""
    grid = x.view(-1, factor, num_columns // factor, factor, x.shape[1])
    return grid.float().mean((1, 3)).to(x.dtype).flatten(0, 1)


def by_element(x: Tensor, num_columns: int, factor: int) -> Tensor:  # [P, D] -> [P / factor^2, factor^2 D]
    """As `neighbours`, but one element of all of them, then the next one."""
    groups = neighbours(x, num_columns, factor).unflatten(1, (-1, x.shape[1]))
    return groups.transpose(1, 2).flatten(1)


def neighbours(x: Tensor, num_columns: int, factor: int) -> Tensor:  # [P, D] -> [P / factor^2, factor^2 D]
    """The rows of `factor` x `factor` neighbours in a picture, side by side (https://arxiv.org/abs/1609.05158)."""
    grid = x.view(-1, factor, num_columns // factor, factor, x.shape[1])  # line of groups, line in it, column of them
    return grid.transpose(1, 2).reshape(len(x) // factor**2, -1)


def connector_of(config: Connector, tower: TowerConfig, hidden_size: int, dtype: torch.dtype) -> nn.Module:
    """The connector of a config."""
    if isinstance(config, MLPConnector):
        return MLP(config, tower, hidden_size, dtype)
    if isinstance(config, PoolConnector):
        return Pool(config, tower, hidden_size, dtype)
    if isinstance(config, MeanConnector):
        return Mean(config, tower, hidden_size, dtype)
    if isinstance(config, MergeConnector):
        return Merge(config, tower, hidden_size, dtype)
    if isinstance(config, GatedConnector):
        return Gated(config, tower, hidden_size, dtype)
    assert isinstance(config, ShuffleConnector), "others have readers of their own"
    return Shuffle(config, tower, hidden_size, dtype)
