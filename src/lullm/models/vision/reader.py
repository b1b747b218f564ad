"""VisionReader: from a tile to rows of the decoder."""

import torch
from torch import Tensor, nn

from lullm.config.vision.vision import MLPConnector, VisionConfig
from lullm.models.protocol import Model
from lullm.models.vision.connector import MLP, Shuffle
from lullm.models.vision.rules import with_vision
from lullm.models.vision.tower import Tower
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
        self.connector = (
            MLP(connector, config.tower, hidden_size, dtype)
            if isinstance(connector, MLPConnector)
            else Shuffle(connector, config.tower, hidden_size, dtype)
        )

    def forward(self, tile: Tile, device: torch.device) -> Tensor:
        """The rows `[R, H]` of a tile, on the device."""
        pixels = torch.from_numpy(pixel_values(tile, self.config.picture)).to(device, self.dtype)
        rows: Tensor = self.connector(self.tower(pixels), tile.width // self.config.tower.patch_size)
        return rows


def add_vision(model: Model, dtype: torch.dtype) -> None:
    """Give a model what reads its pictures (`ModelConfig.vision`), its parameters on the meta device, with their rules.

    Only the first stage of a pipeline embeds, so only it needs them.
    """
    config = model.config
    if config.vision is None or not config.stage.is_first:
        return
    model.vision = VisionReader(config.vision, config.hidden_size, dtype)
    model.rules = with_vision(model.rules, config.vision.tower)
