"""VisionReader: from a tile to rows of the decoder."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import MLPConnector, MosaicConnector, VisionConfig
from lullm.errors import ModelLoadError
from lullm.models.protocol import Model
from lullm.models.vision.connector import MLP, connector_of
from lullm.models.vision.mosaic import MosaicReader
from lullm.models.vision.rules import with_vision
from lullm.models.vision.tower import Tower
from lullm.nn.linear import meta_parameter
from lullm.ops.table import Ops
from lullm.types.vision.grid import SquareGrid
from lullm.types.vision.tile import Tile
from lullm.vision.pixels import pixel_values


class VisionReader(nn.Module):
    """The tower and the connector. Workers that share a model have all of it each: it is small, and idle most times."""

    def __init__(self, config: VisionConfig, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.tower = Tower(config.tower, config.picture.edge, dtype)
        connector = config.connector
        self.connector = connector_of(connector, config.tower, hidden_size, dtype)
        self.newline = meta_parameter((hidden_size,), dtype) if config.has_newline else None
        self.deep = nn.ModuleList()
        if isinstance(connector, MLPConnector):
            normed = replace(connector, has_norm=True, norm_eps=config.tower.layer_norm_eps)
            self.deep.extend(MLP(normed, config.tower, hidden_size, dtype) for _ in config.tower.deep_layers)

    def forward(self, tile: Tile, device: torch.device, ops: Ops) -> Tensor:
        """The rows of a tile, on the device: `[1 + K, R, H]`, see `ShownRows`."""
        pixels = torch.from_numpy(pixel_values(tile, self.config.form_of(tile.num_frames))).to(device, self.dtype)
        if tile.grid is None:
            return self._rows(pixels, ops)
        squares = [self._rows(square, ops)[0] for square in pixels.split(tile.width, 2)]
        return self._packed(torch.stack(squares), tile.grid)[None]

    def _rows(self, pixels: Tensor, ops: Ops) -> Tensor:  # [F, 3, height, width] -> [1 + K, R, H]
        num_columns = pixels.shape[3] // self.config.tower.patch_size
        connectors, results = (self.connector, *self.deep), self.tower(pixels, ops)
        return torch.stack([join(rows, num_columns, ops) for join, rows in zip(connectors, results, strict=True)])

    def _packed(self, squares: Tensor, grid: SquareGrid) -> Tensor:  # [1 + lines * columns, R, H] -> [R, H]
        """The rows of the whole, then those of a grid of squares, line by line, without those of borders."""
        num_sides = self.config.tower.num_sides
        parts = squares[1:].unflatten(1, (num_sides, num_sides)).unflatten(0, (grid.num_lines, grid.num_columns))
        lines, columns = grid.kept(num_sides)
        rows = parts.transpose(1, 2).flatten(2, 3).flatten(0, 1)[lines.start : lines.stop, columns.start : columns.stop]
        size = grid.packed(num_sides, self.config.max_squares)
        if size != rows.shape[:2]:
            rows = functional.interpolate(rows.permute(2, 0, 1)[None], size, mode="bilinear")[0].permute(1, 2, 0)
        if self.newline is not None:
            rows = torch.cat([rows, self.newline.expand(len(rows), 1, -1)], 1)
        return torch.cat([squares[0], rows.flatten(0, 1)])


def add_vision(model: Model, dtype: torch.dtype) -> None:
    """Give a model what reads its pictures (`ModelConfig.vision`), its parameters on the meta device, with their rules.

    Only the first stage of a pipeline embeds, so only it needs them; or each, if layers have inputs of their own.

    Raises ModelLoadError: that stage has fewer layers than rows of pictures are added to.
    """
    config = model.config
    embeds = config.stage.is_first or config.family.layer_inputs is not None
    if config.vision is None or not embeds:
        return
    num_deep = len(config.vision.tower.deep_layers)
    if config.stage.num_layers and len(config.layers) < num_deep:
        raise ModelLoadError(
            f"the first {num_deep} layers of {config.architecture} see pictures, so the first stage of a pipeline must "
            f"have them, not {len(config.layers)}; set pipeline_layers, or language_model_only"
        )
    reader = MosaicReader if isinstance(config.vision.connector, MosaicConnector) else VisionReader
    model.vision = reader(config.vision, config.hidden_size, dtype)
    model.rules = with_vision(model.rules, config.vision.tower)
