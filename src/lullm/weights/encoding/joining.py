"""Joining: collects a checkpoint's tensors that form one parameter, wherever they are in the files."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from lullm.weights.encoding.encoded import EncodedTensor


@dataclass(frozen=True, slots=True)
class Join:
    """Tensors whose names differ in these `suffixes` form one encoded tensor, whose name ends in `whole`.

    Args:
        encode: (the whole name, the tensors by suffix) -> the encoded tensor, decoded while it is written. Raises
            ModelLoadError: a part is missing, or they do not fit together.
    """

    suffixes: tuple[str, ...]
    encode: Callable[[str, Mapping[str, Tensor]], EncodedTensor]
    whole: str = ""


def whole_name(joins: tuple[Join, ...], name: str) -> str:
    """The name of the whole tensor of a part; the name itself for other tensors."""
    for join in joins:
        for suffix in join.suffixes:
            if name.endswith(suffix):
                return name.removesuffix(suffix) + join.whole
    return name


class Joining:
    """Collects tensors by the `joins` of a family.

    Args:
        names: of all tensors that will be added. A tensor alone under its whole name is no part.
    """

    def __init__(self, joins: tuple[Join, ...], names: Iterable[str]):
        self._groups: dict[str, tuple[Join, str]] = {}  # by name of a part: its join, and the whole name
        self._missing: dict[str, set[str]] = {}  # by whole name: suffixes still to come
        self._found: dict[str, dict[str, Tensor]] = {}
        self._num_bytes: dict[str, int] = {}
        for name in names:
            for join in joins:
                suffix = next((suffix for suffix in join.suffixes if name.endswith(suffix)), None)
                if suffix is not None:
                    whole = name.removesuffix(suffix) + join.whole
                    self._groups[name] = join, whole
                    self._missing.setdefault(whole, set()).add(suffix)
                    break
        alone = [whole for whole, suffixes in self._missing.items() if whole in self._groups and len(suffixes) == 1]
        for whole in alone:
            del self._groups[whole], self._missing[whole]

    def add(self, name: str, tensor: Tensor) -> tuple[str, Tensor | EncodedTensor] | None:
        """The tensor, or the whole that it completes, with its name; None: other parts are still to come.

        Raises:
            ModelLoadError: tensors do not fit together, or one is not in the checkpoint.
        """
        if name not in self._groups:
            return name, tensor
        join, whole = self._groups[name]
        suffix = next(suffix for suffix in join.suffixes if name.endswith(suffix))
        parts = self._found.setdefault(whole, {})
        parts[suffix] = tensor
        self._missing[whole].discard(suffix)
        if self._missing[whole]:
            return None
        del self._missing[whole], self._found[whole]
        self._num_bytes[whole] = sum(part.nbytes for part in parts.values())
        return whole, join.encode(whole, parts)

    def num_bytes(self, whole: str) -> int:
        """Bytes of a joined tensor's parts in the files."""
        return self._num_bytes[whole]

    def incomplete(self) -> Iterator[tuple[str, str]]:
        """(name of a tensor, name of a part that an index names and no file holds)."""
        for name, (join, whole) in self._groups.items():
            suffix = next(suffix for suffix in join.suffixes if name.endswith(suffix))
            if suffix in self._missing.get(whole, ()):
                yield whole, name
