"""AdapterShelf: the adapters that a worker has read, in host memory, and the places of those in use.

The engine says what is read, put and dropped. A worker knows nothing of requests.
"""

from pathlib import Path

from lullm.arena.arena import Arena
from lullm.log import get_logger
from lullm.models.protocol import Model
from lullm.units import format_bytes
from lullm.weights.lora.layers import lora_layers
from lullm.weights.lora.places import LoraPlaces, places_bytes
from lullm.weights.lora.reading import Adapter, read_adapter
from lullm.worker.setup import WorkerSetup

logger = get_logger(__name__)


class AdapterShelf:
    """Adapters by their numbers.

    Attributes:
        arena: the memory of all places, with the tag 'lora'.
        rows: see `LoraWeights`.

    Raises:
        ModelLoadError: the model has no layer that may have adapters. CacheSizeError: there is no room for the places.
    """

    def __init__(self, setup: WorkerSetup, model: Model):
        config = setup.config
        self._model, self._dtype, self._max_rank = model, setup.dtype, config.max_lora_rank
        self._layers = lora_layers(model)
        sizes = config.max_loras, config.max_lora_rank
        num_bytes = places_bytes(self._layers, *sizes, self._dtype)
        self.arena: Arena = setup.device.new_arena("lora", num_bytes)
        try:
            self._places = LoraPlaces(self._layers, self.arena, *sizes, config.max_num_batched_tokens, self._dtype)
        except BaseException:
            self.arena.close()
            raise
        self.rows = self._places.rows
        self._read: dict[int, Adapter] = {}
        logger.info("adapters: %d places of rank %d, %s", *sizes, format_bytes(self.arena.used_bytes))

    def read(self, number: int, path: str) -> int:
        """Read a PEFT folder into host memory; returns its bytes. Blocking. Raises ModelLoadError."""
        adapter = read_adapter(Path(path), self._layers, self._model.rules, self._max_rank, self._dtype)
        self._read[number] = adapter
        return adapter.num_bytes

    def drop(self, number: int) -> None:
        """Forget an adapter. It stays in its place, if it has one. Idempotent."""
        self._read.pop(number, None)

    def put(self, place: int, number: int) -> None:
        """Put an adapter that was read into a place."""
        self._places.put(place, self._read[number])

    def clear(self) -> None:
        """All places are empty: their memory was released, or is new."""
        self._places.clear()
