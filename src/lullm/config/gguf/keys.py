"""Keys: the metadata of a GGUF file under its architecture's name, checked on reading."""

from array import array
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from lullm.config.field import Data
from lullm.config.gguf.file import GGUFFile
from lullm.config.gguf.header import read_floats
from lullm.errors import ModelLoadError

_LARGEST = 1 << 53
"""Largest number: all integers up to it are exact in a float."""


class Keys:
    """The metadata of one architecture. Keys are given without its name."""

    def __init__(self, file: GGUFFile):
        self.file, self._prefix = file, file.architecture

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self._prefix}.{key}", default)

    def has(self, tensor: str) -> bool:
        """Whether the file holds a tensor of this name."""
        return tensor in self.file.tensors

    @property
    def num_layers(self) -> int:
        """The number of layers, without those at the end that only draft tokens."""
        num_drafting = self.get("nextn_predict_layers") or 0
        is_count = isinstance(num_drafting, int) and 0 <= num_drafting < self.need("block_count")
        if not is_count:
            raise self.fault(f"nextn_predict_layers {num_drafting!r:.40} is no number of its layers")
        return int(self.need("block_count")) - int(num_drafting)

    def number(self, key: str, by_layer: bool = False) -> Any:
        """One positive number for all layers, even if the file has an array of them; None: the key is missing.

        by_layer: 0 in an array means none in that layer. Raises ModelLoadError.
        """
        value = self.get(key)
        if isinstance(value, array) and len(different := set(value) - ({0} if by_layer else set())) == 1:
            value = different.pop()
        if isinstance(value, array):
            raise self.fault(f"{self._prefix}.{key} differs from layer to layer, which is not supported")
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST
        if value is not None and not is_number:
            raise self.fault(f"{self._prefix}.{key} must be a positive number, not {value!r:.80}")
        return value

    def need(self, key: str, by_layer: bool = False) -> Any:
        """As `number`. Raises ModelLoadError, also if the key is missing."""
        value = self.number(key, by_layer)
        if value is None:
            raise self.fault(f"{self._prefix}.{key} is missing")
        return value

    def numbers(self, **keys: str) -> Data:
        """Positive numbers by names of a config; `keys` has the file's key for each."""
        return {name: self.need(key) for name, key in keys.items()}

    def floats(self, tensor: str) -> list[float] | None:
        place = self.file.tensors.get(tensor)
        return None if place is None else read_floats(place)

    def fault(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.file.path}: {what}")


def short(value: float) -> float:
    """A float32 in its shortest decimal form: 0.1, not 0.10000000149."""
    return float(f"{value:.7g}")


@dataclass(frozen=True, slots=True)
class Architecture:
    """The rules for one value of `general.architecture`.

    Args:
        read: makes the config's keys beside the common ones. Raises ModelLoadError.
        implements: keys that change the arithmetic and that `read` reads.
        is_hybrid: layers are of several kinds; some have no key heads (an array with zeros).
        reads_layers: `read` reads the keys that differ between layers (key heads, sizes of MLPs).
        has_heads: whether there is attention, and an MLP after it.
    """

    read: Callable[[Keys], Data]
    implements: Set[str] = frozenset()
    is_hybrid: bool = False
    reads_layers: bool = False
    has_heads: bool = True
