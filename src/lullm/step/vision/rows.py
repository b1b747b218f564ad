"""TileRowStore: the rows that the tower has computed of tiles, kept for the spans that show them."""

from collections.abc import Sequence

from torch import Tensor

from lullm.device.device import Device
from lullm.models.protocol import Model
from lullm.nn.context import ShownRows
from lullm.ops.table import Ops
from lullm.types.step import StepPlan
from lullm.types.vision.tile import TileRows


class TileRowStore:
    """Rows of tiles on the device of one worker.

    Plans say which tiles to compute and which to drop (`kv.vision.ledger`), so the memory is bounded by the engine. The
    tower computes one tile at a time, so its rows have the same bits in whatever company.
    """

    def __init__(self, device: Device, model: Model, ops: Ops):
        self._device = device.torch_device
        self._tower, self._ops = model.tile_reader, ops
        self._rows: dict[bytes, Tensor] = {}

    def update(self, plan: StepPlan) -> None:
        """Drop and compute what the plan says. Within the step's work, before its spans."""
        if self._tower is None:  # of another stage, if the model has one
            return
        for digest in plan.tiles_to_drop:
            self._rows.pop(digest, None)
        for tile in plan.tiles:
            self._rows[tile.digest] = self._tower(tile, self._device, self._ops)

    def shown(self, tiles: Sequence[tuple[int, TileRows]]) -> list[ShownRows]:
        """The rows of a batch (`Batch.tiles`)."""
        if self._tower is None:
            return []
        return [
            ShownRows(first_row + tile.row, self._rows[tile.digest][:, tile.first : tile.first + tile.num_rows])
            for first_row, tile in tiles
        ]

    def rows(self, shown: TileRows) -> Tensor:
        """Rows `[R, H]` of one tile."""
        return self._rows[shown.digest][0, shown.first : shown.first + shown.num_rows]

    def forget(self) -> None:
        """Release the memory of all rows; no step runs."""
        self._rows.clear()
