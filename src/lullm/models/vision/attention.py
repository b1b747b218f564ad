"""Attention of a tower: over all rows of a tile, or within windows. Heads may rotate by line and column."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import TowerConfig
from lullm.models.vision.parts import Dense, RMSNorm

_QK_NORM_EPS = 1e-6
"""Whatever the other norms have."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What the rows of a tile see of each other, and where they are.

    Args:
        windows: (number, rows of each), of consecutive rows that see their own window only; empty: all see all.
        rotation: cosines and sines `[P, 1, D / 2]` float32 of the angles by which the pairs of a head of D elements
            rotate; None: not at all.
    """

    windows: Sequence[tuple[int, int]] = ()
    rotation: tuple[Tensor, Tensor] | None = None

    def without_windows(self) -> "Sight":
        return Sight((), self.rotation)


class SelfAttention(nn.Module):
    """Over the rows of a tile."""

    def __init__(self, config: TowerConfig, dtype: torch.dtype):
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.is_fused = config.is_fused
        has_bias = config.has_attention_bias
        if config.is_fused:
            self.qkv_proj = Dense(size, 3 * size, has_bias, dtype)
        else:
            self.q_proj, self.k_proj, self.v_proj = (Dense(size, size, has_bias, dtype) for _ in range(3))
        self.out_proj = Dense(size, size, True, dtype)
        self.q_norm, self.k_norm = (
            RMSNorm(size, _QK_NORM_EPS, dtype) if config.has_qk_norm else None for _ in range(2)
        )

    def forward(self, x: Tensor, sight: Sight) -> Tensor:  # [P, D] -> [P, D]
        query, key, value = (
            self.qkv_proj(x).chunk(3, dim=-1) if self.is_fused else (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (row.unflatten(-1, (self.num_heads, -1)) for row in (query, key, value))
        if sight.rotation is not None:
            query, key = turned(query, *sight.rotation), turned(key, *sight.rotation)
        mixed, first = [], 0
        for number, size in sight.windows or [(1, len(x))]:
            end = first + number * size
            heads = [rows[first:end].unflatten(0, (number, size)).transpose(1, 2) for rows in (query, key, value)]
            mixed.append(functional.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(number * size, -1))
            first = end
        out: Tensor = self.out_proj(torch.cat(mixed))
        return out


def turned(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:  # [P, heads, D] -> the same
    """Heads whose pairs (i, i + D / 2) have rotated, in float32 up to the result."""
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1).to(heads.dtype)


def rotation_of(num_lines: int, num_columns: int, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """`Sight.rotation` of patches line by line: by F angles for the line, then F for the column.

    Args:
        frequencies: `[F]`, radians per patch.
    """
    place = frequencies.device
    lines = torch.arange(num_lines, device=place)[:, None].expand(num_lines, num_columns)
    columns = torch.arange(num_columns, device=place)[None].expand(num_lines, num_columns)
    both = torch.stack([lines, columns], dim=-1).flatten(0, 1).float()  # [P, 2]
    angles = (both[:, :, None] * frequencies).flatten(1)[:, None]  # [P, 1, 2 F]
    return angles.cos(), angles.sin()


def windows_of(num_lines: int, num_columns: int, edge: int) -> tuple[Tensor, list[tuple[int, int]]]:
    """The rows of a picture, window by window: (their numbers line by line `[P]`, `Sight.windows`).

    Windows of `edge` x `edge` begin at the upper left. Those at the right and lower edges may be smaller, and come
    behind the others: so windows of one shape stand beside each other, and are computed together.
    """
    numbers = torch.arange(num_lines * num_columns, device="cpu").view(num_lines, num_columns)
    order, windows = [], []
    for lines in _cut(num_lines, edge):
        for columns in _cut(num_columns, edge):
            part = numbers[lines, columns]
            height, width = min(edge, part.shape[0]), min(edge, part.shape[1])
            by_window = part.unflatten(1, (-1, width)).unflatten(0, (-1, height)).transpose(1, 2)
            order.append(by_window.flatten())
            windows.append((part.numel() // (height * width), height * width))
    return torch.cat(order), windows


def _cut(length: int, edge: int) -> list[slice]:
    """The whole windows of an edge of a picture, and what is left behind them."""
    whole = length // edge * edge
    return [part for part in (slice(0, whole), slice(whole, length)) if part.stop > part.start]
