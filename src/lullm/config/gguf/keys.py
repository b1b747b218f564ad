"""Keys: the metadata of a GGUF file under its architecture's name, checked as it is read."""

from array import array
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from lullm.config.gguf.file import GGUFFile
from lullm.config.gguf.header import read_floats
from lullm.errors import ModelLoadError

Data = dict[str, Any]
_LARGEST = 1 << 53
"""Of a number: all up to it are whole in a float."""


class Keys:
    """The metadata of one architecture: keys are said without its name in front."""

    def __init__(self, file: GGUFFile):
        self.file, self._prefix = file, file.architecture

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self._prefix}.{key}", default)

    def has(self, tensor: str) -> bool:
        """Whether the file holds a tensor of this name."""
        return tensor in self.file.tensors

    @property
    def num_layers(self) -> int:
        """Without those at the end that only draft tokens."""
        num_drafting = self.get("nextn_predict_layers") or 0
        is_count = isinstance(num_drafting, int) and 0 <= num_drafting < self.need("block_count")
        if not is_count:
            raise self.fault(f"nextn_predict_layers {num_drafting!r:.40} is no number of its layers")
        return int(self.need("block_count")) - int(num_drafting)

    def need(self, key: str, by_layer: bool = False) -> Any:
        """One positive number for all layers, even where the file has an array of them."""
        value = self.number(key, by_layer)
        if value is None:
            raise ModelLoadError(f"{self.file.path}: {self._prefix}.{key} is missing")
        return value

    def numbers(self, **keys: str) -> Data:
        """Positive numbers, by names of a config: of each the key of the file that says it."""
        return {name: self.need(key) for name, key in keys.items()}

    def number(self, key: str, by_layer: bool = False) -> Any:
        """The same, or None. by_layer: 0 in an array is of layers that have none of it. Raises ModelLoadError."""
        value = self.get(key)
        if isinstance(value, array) and len(different := set(value) - ({0} if by_layer else set())) == 1:
            value = different.pop()
        if isinstance(value, array):
            raise ModelLoadError(
                f"{self.file.path}: {self._prefix}.{key} differs from layer to layer, which is not supported"
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST
        if value is not None and not is_number:
            raise ModelLoadError(f"{self.file.path}: {self._prefix}.{key} must be a positive number, not {value!r:.80}")
        return value

    def floats(self, tensor: str) -> list[float] | None:
        place = self.file.tensors.get(tensor)
        return None if place is None else read_floats(place)

    def fault(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.file.path}: {what}")


def short(value: float) -> float:
    """A float of 32 bits as people wrote it: 0.1 rather than 0.10000000149."""
    return float(f"{value:.7g}")


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one value of `general.architecture` is read.

    Args:
        read: what its config says beside the common keys. Raises ModelLoadError.
        implements: keys that change the arithmetic, and that it reads.
        is_hybrid: layers of several kinds, of which some have no heads of keys (an array with zeros).
        reads_layers: whether it reads itself what differs from layer to layer (heads of keys, sizes of MLPs).
        has_heads: whether there is attention, and an MLP behind it.
    """

    read: Callable[[Keys], Data]
    implements: Set[str] = frozenset()
    is_hybrid: bool = False
    reads_layers: bool = False
    has_heads: bool = True
