"""Source: the tensors of a checkpoint on disk, in any kind of files."""

import contextlib
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lullm.config.gguf.file import is_gguf
from lullm.config.mistral.layout import has_own_layout
from lullm.errors import ModelLoadError
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.joining import Joining
from lullm.weights.gguf.checkpoint import GGUFSource
from lullm.weights.reading.files import damaged, dense_file, stored_names, weight_files
from lullm.weights.reading.mistral import MistralNames
from lullm.weights.rule import WeightRules


class Source(Protocol):
    """All tensors, under a checkpoint's names. Its methods raise ModelLoadError: a file is missing or damaged."""

    num_bytes: int

    def rules(self, rules: WeightRules) -> WeightRules:
        """A family's rules for these files."""
        ...

    def names(self) -> frozenset[str]: ...

    def shapes(self) -> dict[str, list[int]]:
        """The shapes of all tensors, by name; reads only headers."""
        ...

    def formats(self, rules: WeightRules) -> dict[str, tuple[int, ...]]:
        """Native formats that hold a tensor exactly (`EncodedTensor.native_formats`), by canonical names.

        The loader reports parts that do not fit together.
        """
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor | EncodedTensor, int]]:
        """Names, tensors and their bytes in the files. They are mapped and not read yet."""
        ...


def open_source(path: Path, dense: Iterable[str] = (), mmproj: Path | None = None) -> Source:
    """A folder of safetensors, or a GGUF file. Raises ModelLoadError: files are missing or damaged.

    Args:
        dense: folders in it of layers of sentence-transformers, whose tensors are read, too. mmproj: the file beside a
            GGUF file that reads pictures.
    """
    if is_gguf(path):
        return GGUFSource(path, mmproj)
    return MistralSource(path) if has_own_layout(path) else SafetensorsSource(path, dense)


class SafetensorsSource:
    """The safetensors of a folder."""

    def __init__(self, folder: Path, dense: Iterable[str] = ()):
        self._folder, self._files = folder, weight_files(folder)
        self._dense = {dense_file(folder, module): module for module in dense}
        self.num_bytes = sum(path.stat().st_size for path in (*self._files, *self._dense))

    def rules(self, rules: WeightRules) -> WeightRules:
        return rules

    def names(self) -> frozenset[str]:
        return stored_names(self._folder)

    def shapes(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for path, wanted in self._files.items():
            with _opened(path) as file:
                found |= {name: file.get_slice(name).get_shape() for name in _names_in(file, wanted)}
        return found

    def formats(self, rules: WeightRules) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        joining = Joining(rules.joins, self.names() if rules.joins else ())
        for name, tensor, _ in self.tensors() if rules.joins else ():
            with contextlib.suppress(ModelLoadError):
                whole = joining.add(name, tensor)
                if whole is not None and isinstance(whole[1], EncodedTensor):
                    found[rules.canonical_name(whole[0])] = whole[1].native_formats
        return found

    def tensors(self) -> Iterator[tuple[str, Tensor, int]]:
        seen: set[str] = set()
        for path, wanted in self._files.items():
            with _opened(path) as file:
                names = _names_in(file, wanted)
                if twice := seen.intersection(names):
                    raise damaged(path, f"another file holds {min(twice)}, too")
                seen.update(names)
                for name in names:
                    tensor = file.get_tensor(name)
                    yield name, tensor, tensor.nbytes
        for path, module in self._dense.items():
            with _opened(path) as file:
                for name in _names_in(file, None):
                    tensor = file.get_tensor(name)
                    yield f"{module}.{name}", tensor, tensor.nbytes


class MistralSource(SafetensorsSource):
    """The same in Mistral's own layout, under the names and in the order of transformers' layout."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._own = MistralNames(folder)

    def names(self) -> frozenset[str]:
        return frozenset(map(self._own.of, super().names()))

    def shapes(self) -> dict[str, list[int]]:
        return {self._own.of(name): shape for name, shape in super().shapes().items()}

    def tensors(self) -> Iterator[tuple[str, Tensor, int]]:
        for stored, tensor, num_bytes in super().tensors():
            name = self._own.of(stored)
            yield name, self._own.in_order(name, tensor), num_bytes


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A file of safetensors. Raises ModelLoadError: it is damaged."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise damaged(path, error) from None


def _names_in(file: Any, wanted: Set[str] | None) -> list[str]:
    """The names of the tensors of an open file, in order; None: all are wanted."""
    stored = set(file.keys())
    return sorted(stored if wanted is None else stored & wanted)
