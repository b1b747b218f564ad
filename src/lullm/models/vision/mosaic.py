"""MosaicReader: from a picture in the corner of a grid of squares to rows of the decoder (Phi-4-multimodal)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import VisionConfig
from lullm.models.vision.connector import mean_of
from lullm.models.vision.parts import dense
from lullm.models.vision.tower import Tower
from lullm.nn.linear import meta_parameter
from lullm.ops.table import Ops
from lullm.types.vision.grid import SquareGrid
from lullm.types.vision.tile import Tile
from lullm.units import cdiv
from lullm.vision.pixels import pixel_values


class MosaicConnector(nn.Module):
    """See the config of the same name."""

    def __init__(self, size: int, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.line_end, self.between = (meta_parameter((size,), dtype) for _ in range(2))
        self.linear_1 = dense(size, hidden_size, True, dtype)
        self.linear_2 = dense(hidden_size, hidden_size, True, dtype)

    def forward(self, grid: Tensor, whole: Tensor, ops: Ops) -> Tensor:  # [lines, columns, D] each -> [R, H]
        rows = torch.cat([self._ended(grid), self.between[None], self._ended(whole)])
        out: Tensor = self.linear_2(ops.activate(self.linear_1(rows, ops), "gelu"), ops)
        return out

    def _ended(self, rows: Tensor) -> Tensor:  # [lines, columns, D] -> [lines * (columns + 1), D]
        return torch.cat([rows, self.line_end.expand(len(rows), 1, -1)], 1).flatten(0, 1)


class MosaicReader(nn.Module):
    """The tower reads the squares one by one, and a small copy of the whole."""

    def __init__(self, config: VisionConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config, self.dtype = config, dtype
        self.tower = Tower(config.tower, config.picture.edge, dtype)
        self.connector = MosaicConnector(config.tower.hidden_size, hidden_size, dtype)

    def forward(self, tile: Tile, device: torch.device, ops: Ops) -> Tensor:
        """The rows of a tile, on the device: `[1, R, H]`, see `ShownRows`."""
        assert tile.grid is not None, "pictures stand in a grid"
        edge = self.config.picture.edge
        numbers = torch.from_numpy(pixel_values(tile, self.config.picture)).to(device)
        # Of the numbers, borders included, each a mix of sixteen however many it stands for: as this model was trained.
        small = functional.interpolate(numbers, (edge, edge), mode="bicubic")
        whole = self._means(small.to(self.dtype), None, ops)
        return self.connector(self._grid(numbers.to(self.dtype), tile.grid, ops), whole, ops)[None]

    def _grid(self, pixels: Tensor, grid: SquareGrid, ops: Ops) -> Tensor:  # [1, 3, height, width] -> [l, c, D]
        """The rows that show the picture: means of neighbours of which some may show the border."""
        tower, edge, factor = self.config.tower, self.config.picture.edge, self.config.connector.scale_factor
        num_sides = tower.num_sides
        seen = grid.seen(edge, num_sides)
        lines = []
        for top in range(0, seen[0], num_sides):
            squares = []
            for left in range(0, seen[1], num_sides):
                shown = min(seen[0] - top, num_sides), min(seen[1] - left, num_sides)
                # Whole groups of neighbours. What lies behind them nobody sees.
                bottom, right = (
                    first + cdiv(number, factor) * factor for first, number in zip((top, left), shown, strict=True)
                )
                patch = tower.patch_size
                part = pixels[:, :, top * patch : bottom * patch, left * patch : right * patch]
                squares.append(self._means(part, shown, ops))
            lines.append(torch.cat(squares, 1))
        return torch.cat(lines)

    def _means(self, pixels: Tensor, shown: tuple[int, int] | None, ops: Ops) -> Tensor:  # -> [l, c, D]
        num_columns = pixels.shape[3] // self.config.tower.patch_size
        [rows] = self.tower(pixels, ops, shown)
        means = mean_of(rows, num_columns, self.config.connector.scale_factor)
        return means.unflatten(0, (-1, num_columns // self.config.connector.scale_factor))
