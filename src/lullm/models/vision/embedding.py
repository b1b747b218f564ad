"""From the pixels of a tile to the rows of its patches."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import TowerConfig
from lullm.nn.linear import meta_parameter
from lullm.nn.norm import RMSNorm, normed
from lullm.ops.table import Ops

_CHANNELS = 3
_SHARPNESS = -0.75
"""Of the cubic interpolation of positions (https://doi.org/10.1109/TASSP.1981.1163711), as in the models' training."""


class Patches(nn.Module):
    """A convolution whose stride is its width, as one product. Of a film it reads several pictures at once."""

    def __init__(self, config: TowerConfig, dtype: torch.dtype):
        super().__init__()
        self.size, self.num_frames = config.patch_size, max(config.num_frames, 1)
        self.channels_last = config.channels_last
        frames = (config.num_frames,) if config.num_frames else ()
        shape = (_CHANNELS, *frames, self.size, self.size)
        shape = (math.prod(shape),) if config.channels_last else shape
        self.weight = meta_parameter((config.hidden_size, *shape), dtype)
        self.bias = meta_parameter((config.hidden_size,), dtype) if config.has_patch_bias else None

    def forward(self, pixels: Tensor) -> Tensor:  # [F, 3, height, width] -> [lines * columns, D]
        lines, columns = (length // self.size for length in pixels.shape[2:])
        whole = pixels[:, :, : lines * self.size, : columns * self.size]  # an edge may have some pixels more
        cut = whole.reshape(len(pixels), _CHANNELS, lines, self.size, columns, self.size)
        patches = cut.permute(2, 4, 1, 0, 3, 5)  # [lines, columns, 3, F, size, size]
        if self.channels_last:
            read = patches[:, :, :, 0].permute(0, 1, 3, 4, 2)
        else:
            read = patches.expand(-1, -1, -1, self.num_frames, -1, -1)
        return functional.linear(read.reshape(lines * columns, -1), self.weight.flatten(1), self.bias)


class Positions(nn.Module):
    """A learned row for each position."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter(shape, dtype)


class Embeddings(nn.Module):
    """Patches as rows, with learned positions; the row for the whole picture before them."""

    position_ids: Tensor | None

    def __init__(self, config: TowerConfig, edge: int, dtype: torch.dtype):
        super().__init__()
        self.patch_embedding = Patches(config, dtype)
        self.patch_norm = RMSNorm(config.hidden_size, config.layer_norm_eps, dtype) if config.has_patch_norm else None
        self.class_embedding = meta_parameter((config.hidden_size,), dtype) if config.has_class_row else None
        shape: tuple[int, ...] = (config.num_sides**2 + config.has_class_row, config.hidden_size)
        if config.positions == "axes":
            shape = (2, config.num_positions, config.hidden_size)
        has_table = config.positions != "none"
        self.position_embedding = Positions(shape, dtype) if has_table else None
        self.shares_of = _SHARES.get(config.positions, linear_shares)
        is_free = config.positions in ("axes", "none", *_SHARES)
        ids = None if is_free else position_ids(config, edge // config.patch_size)
        self.register_buffer("position_ids", ids, persistent=False)

    def forward(
        self, pixels: Tensor, ops: Ops, seen: tuple[int, int] | None = None
    ) -> Tensor:  # [F, 3, height, width] -> [P, D]
        """`seen`: of a table whose nearest positions are taken: the first lines and columns alone show a picture, and
        all others have the first position.
        """
        rows = normed(self.patch_norm, self.patch_embedding(pixels), ops)
        if self.class_embedding is not None:
            rows = torch.cat([self.class_embedding[None], rows])
        if self.position_embedding is None:
            return rows
        table = self.position_embedding.weight
        lines, columns = (length // self.patch_embedding.size for length in pixels.shape[2:])
        if seen is not None:
            ids = torch.zeros(lines, columns, dtype=torch.long, device="cpu")
            ids[: seen[0], : seen[1]] = nearest_positions(*seen, math.isqrt(len(table)))
            return rows + table[ids.flatten().to(table.device)]
        if self.position_ids is not None:
            return rows + table[self.position_ids]
        if table.ndim == 3:  # of columns, of lines
            return rows + (table[0, None, :columns] + table[1, :lines, None]).flatten(0, 1)
        num_sides = math.isqrt(len(table))
        of_lines, of_columns = (self.shares_of(num, num_sides).to(table.device) for num in (lines, columns))
        by_line = of_lines @ table.float().view(num_sides, -1)  # [lines, num_sides * D]
        return rows + (of_columns @ by_line.view(lines, num_sides, -1)).flatten(0, 1).to(rows.dtype)


def position_ids(config: TowerConfig, num_sides: int) -> Tensor:  # [P]
    """The position of each row of a tile of so many patches on a side."""
    if config.positions != "nearest":
        return torch.arange(config.num_sides**2 + config.has_class_row, device="cpu")
    return nearest_positions(num_sides, num_sides, config.num_sides).flatten()


def nearest_positions(num_lines: int, num_columns: int, num_table: int) -> Tensor:  # [lines, columns]
    """Of fewer patches than the table has, the position that is nearest by the share of an edge
    (https://arxiv.org/abs/2307.06304). Shares are rounded to float32, as where the table was learned.
    """
    bounds = torch.arange(1 / num_table, 1.0, 1 / num_table, device="cpu")
    of_lines, of_columns = (
        torch.arange(number, dtype=torch.float32, device="cpu") * (1.0 / torch.tensor(number, device="cpu"))
        for number in (num_lines, num_columns)
    )
    lines, columns = (
        torch.bucketize(shares.clamp(max=1.0 - 1e-6), bounds, right=True) for shares in (of_lines, of_columns)
    )
    return lines[:, None] * num_table + columns[None, :]


def linear_shares(number: int, num_sides: int) -> Tensor:  # [number, num_sides]
    """What each of `number` places on an edge takes of the positions of a table: of the two around it, by nearness.

    The ends of the edge are those of the table.
    """
    places = torch.arange(number, dtype=torch.float32, device="cpu") * (num_sides - 1) / max(number - 1, 1)
    below = places.floor()
    above = places - below
    return _spread(torch.stack([below, below + 1], dim=1), torch.stack([1 - above, above], dim=1), num_sides)


def cubic_shares(number: int, num_sides: int) -> Tensor:  # [number, num_sides]
    """The same, of the four around it, by a cubic curve; a place is the middle of its part of the edge."""
    places = _middles(number, num_sides)
    ids = places.floor()[:, None] + torch.arange(-1, 3, device="cpu")
    away = (places[:, None] - ids).abs()
    near = ((_SHARPNESS + 2) * away - (_SHARPNESS + 3)) * away**2 + 1
    far = _SHARPNESS * (((away - 5) * away + 8) * away - 4)
    return _spread(ids, torch.where(away < 1, near, far).float(), num_sides)


def middle_shares(number: int, num_sides: int) -> Tensor:  # [number, num_sides]
    """As `linear_shares`, but a place is the middle of its part of the edge."""
    places = _middles(number, num_sides)
    below = places.floor()
    above = (places - below).float()
    return _spread(torch.stack([below, below + 1], dim=1), torch.stack([1 - above, above], dim=1), num_sides)


def _middles(number: int, num_sides: int) -> Tensor:  # [number] float64
    return (torch.arange(number, dtype=torch.float64, device="cpu") + 0.5) * num_sides / number - 0.5


_SHARES = {"linear": linear_shares, "middle": middle_shares, "cubic": cubic_shares}


def _spread(ids: Tensor, shares: Tensor, num_sides: int) -> Tensor:
    """Shares `[number, K]` of positions `ids` as a matrix; beyond the ends of the table there is its end."""
    places = ids.long().clamp(0, num_sides - 1)
    return torch.zeros(len(ids), num_sides, device="cpu").scatter_add_(1, places, shares)
