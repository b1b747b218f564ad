"""Attention of a tower: over all rows of a tile, or within windows. Heads may rotate by line and column."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import TowerConfig
from lullm.models.vision.parts import tower_matrix
from lullm.nn.norm import RMSNorm, normed
from lullm.ops.attention_layout import MutualScores
from lullm.ops.table import Ops

_QK_NORM_EPS = 1e-6
"""Whatever the other norms have."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What the rows of a tile see of each other, and where they are.

    Args:
        windows: rows of each, of consecutive rows that see their own window only; empty: all see all.
        num_seen: the first rows, which all rows see; the others are seen by none; None: all are seen.
        rotation: of the angles by which the pairs of a head of D elements rotate, D/2 cosines and D/2 sines `[P, D]`
            float32; None: not at all.
    """

    windows: Sequence[int] = ()
    rotation: Tensor | None = None
    num_seen: int | None = None

    def without_windows(self) -> "Sight":
        return replace(self, windows=())


class SelfAttention(nn.Module):
    """Over the rows of a tile."""

    def __init__(self, config: TowerConfig, dtype: torch.dtype):
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.is_fused = config.is_fused
        has_bias = config.has_attention_bias
        if config.is_fused:
            self.qkv_proj = tower_matrix(config, size, 3 * size, has_bias, dtype)
        else:
            self.q_proj, self.k_proj, self.v_proj = (
                tower_matrix(config, size, size, has_bias, dtype) for _ in range(3)
            )
        self.out_proj = tower_matrix(config, size, size, config.has_bias, dtype)
        head_dim = size // config.num_attention_heads
        self.scale = head_dim**-0.5 if config.attention_scale is None else config.attention_scale
        self.norms_heads = config.has_head_norms
        self.q_norm = self.k_norm = self.v_norm = None
        if config.has_head_norms:
            self.q_norm, self.k_norm = (RMSNorm(head_dim, config.layer_norm_eps, dtype) for _ in range(2))
        elif config.has_qk_norm:
            self.q_norm, self.k_norm = (RMSNorm(size, _QK_NORM_EPS, dtype) for _ in range(2))
        if config.has_value_norms:
            self.v_norm = RMSNorm(head_dim, config.layer_norm_eps, dtype, has_weight=False)

    def forward(self, x: Tensor, sight: Sight, ops: Ops) -> Tensor:  # [P, D] -> [P, D]
        query, key, value = self._heads(x, ops)
        if sight.rotation is not None:
            rows = torch.arange(len(x), device=x.device)
            for heads in (query, key):
                ops.rotate_(heads, None, rows, sight.rotation)
        num_seen = len(x) if sight.num_seen is None else sight.num_seen
        key, value = key[:num_seen], value[:num_seen]
        lens = sight.windows or [num_seen]
        mixed = ops.mutual_attention(query[:num_seen], key, value, lens, MutualScores(self.scale))
        if num_seen < len(x):
            mixed = torch.cat([mixed, _looking(query[num_seen:], key, value, self.scale)])
        out: Tensor = self.out_proj(mixed.flatten(1), ops)
        return out

    def _heads(self, x: Tensor, ops: Ops) -> list[Tensor]:  # [P, D] -> three of [P, heads, D / heads]
        """Queries, keys and values, with their norms: of each head, or of all heads of a row together."""
        norms = self.q_norm, self.k_norm, self.v_norm
        if self.is_fused:
            rows = self.qkv_proj(x, ops).chunk(3, dim=-1)
        else:
            rows = [project(x, ops) for project in (self.q_proj, self.k_proj, self.v_proj)]
        if not self.norms_heads:
            rows = [normed(norm, each, ops) for norm, each in zip(norms, rows, strict=True)]
        heads = [each.unflatten(-1, (self.num_heads, -1)) for each in rows]
        if self.norms_heads:
            heads = [normed(norm, each, ops) for norm, each in zip(norms, heads, strict=True)]
        return heads


def _looking(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:  # [Q, heads, D] each
    """Of rows that are not seen themselves. They are few."""
    query, key, value = (rows.transpose(0, 1) for rows in (query, key, value))
    return functional.scaled_dot_product_attention(query, key, value, scale=scale).transpose(0, 1)


def rotation_of(num_lines: int, num_columns: int, frequencies: Tensor) -> Tensor:
    """`Sight.rotation` of patches line by line: by F angles for the line, then F for the column.

    Args:
        frequencies: `[2, F]`, radians per patch, of lines and of columns.
    """
    place = frequencies.device
    lines = torch.arange(num_lines, device=place)[:, None].expand(num_lines, num_columns)
    columns = torch.arange(num_columns, device=place)[None].expand(num_lines, num_columns)
    both = torch.stack([lines, columns], dim=-1).flatten(0, 1).float()  # [P, 2]
    angles = (both[:, :, None] * frequencies).flatten(1)  # [P, 2 F]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def windows_of(num_lines: int, num_columns: int, edge: int) -> tuple[Tensor, list[int]]:
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
            windows += [height * width] * (part.numel() // (height * width))
    return torch.cat(order), windows


def seen_first(num_lines: int, num_columns: int, seen: tuple[int, int]) -> Tensor:  # [P]
    """The numbers of the rows of a picture, line by line: first those of its first `seen` lines and columns."""
    is_seen = torch.zeros(num_lines, num_columns, dtype=torch.bool, device="cpu")
    is_seen[: seen[0], : seen[1]] = True
    return torch.cat([is_seen.flatten().nonzero()[:, 0], (~is_seen).flatten().nonzero()[:, 0]])


def _cut(length: int, edge: int) -> list[slice]:
    """The whole windows of an edge of a picture, and what is left behind them."""
    whole = length // edge * edge
    return [part for part in (slice(0, whole), slice(whole, length)) if part.stop > part.start]
