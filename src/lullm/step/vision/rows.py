"""TileRowStore: the rows that the tower has computed of tiles, and given ones, kept for the spans that show them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lullm.device.device import Device
from lullm.models.protocol import Model
from lullm.nn.context import ShownRows
from lullm.ops.table import Ops
from lullm.types.step import StepPlan
from lullm.types.vision.given import GivenRows
from lullm.types.vision.tile import TileRows


class TileRowStore:
    """Rows of tiles on the device of one worker.

    Plans say which tiles to compute and which to drop (`kv.vision.ledger`), so the memory is bounded by the engine. The
    tower computes one tile at a time, so its rows have the same bits in whatever company.
    """

    def __init__(self, device: Device, model: Model, ops: Ops):
        self._device = device.torch_device
        self._tower, self._ops = model.tile_reader, ops
        is_first, blocks = model.config.stage.is_first, model.config.family.shared_blocks
        self._reads = model.tile_reader is not None or is_first or blocks is not None  # Zamba2's, on every stage
        self._rows: dict[bytes, Tensor] = {}

    def update(self, plan: StepPlan) -> None:
        """Drop and compute what the plan says. Within the step's work, before its spans."""
        if not self._reads:
            return
        for digest in plan.tiles_to_drop:
            self._rows.pop(digest, None)
        for tile in plan.tiles:
            if isinstance(tile, GivenRows):
                self._rows[tile.digest] = _given(tile).to(self._device)
            elif self._tower is not None:
                self._rows[tile.digest] = self._tower(tile, self._device, self._ops)

    def shown(self, tiles: Sequence[tuple[int, TileRows]]) -> list[ShownRows]:
        """The rows of a batch (`Batch.tiles`)."""
        if not self._reads:
            return []
        return [
            ShownRows(first_row + row, self._rows[tile.digest][:, first : first + num_rows])
            for first_row, tile in tiles
            for row, first, num_rows in tile.of_tower()
        ]

    def rows(self, shown: TileRows) -> Tensor:
        """Rows `[R, H]` of one tile."""
        return self._rows[shown.digest][0, shown.first : shown.first + shown.num_rows]

    def forget(self) -> None:
        """Release the memory of all rows; no step runs."""
        self._rows.clear()


def _given(rows: GivenRows) -> Tensor:  # -> [1, R, H]
    # a copy, since the memory of bytes cannot be written
    values = torch.frombuffer(bytearray(rows.values), dtype=getattr(torch, rows.dtype))
    return values.view(1, rows.num_rows, -1)
