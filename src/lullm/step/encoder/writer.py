"""EncoderWriter: keys and values of an encoder's rows, written into the first blocks of their sequences."""

from collections.abc import Sequence

import numpy as np
import torch

from lullm.device.device import Device
from lullm.models.protocol import Model
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.table import Ops
from lullm.step.encoder.split import EncoderWrites
from lullm.step.vision.rows import TileRowStore


class EncoderWriter:
    """Writes an encoder's rows into one worker's cache. `tiles`: what its encoder has read."""

    def __init__(self, device: Device, ops: Ops, model: Model, tiles: TileRowStore):
        self._device = device.torch_device
        self._ops = ops
        self._model = model
        self._tiles = tiles

    def write(self, writes: EncoderWrites, caches: Sequence[LayerCache]) -> None:
        """Before the step's spans, which may attend to the rows."""
        if not writes.rows:
            return
        rows = torch.cat([self._tiles.rows(shown) for shown in writes.rows])
        self._model.write_encoder(rows, torch.from_numpy(writes.slots).to(self._device), caches, self._ops)


def with_slots(slot_mapping: np.ndarray | None, writes: EncoderWrites) -> np.ndarray | None:
    """The slots `[1, P + T]` that a step writes, those of an encoder's rows first. None: no slot.

    Args:
        slot_mapping: `[G, T]` of its tokens; None: it has none.
    """
    of_tokens = np.empty((1, 0), np.int64) if slot_mapping is None else slot_mapping[:1]
    slots = np.concatenate([writes.slots[None], of_tokens], axis=1)
    return slots if slots.size else None
