"""Joining: tensors of a checkpoint that are one parameter's together, wherever in the files they stand."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from lullm.weights.encoding.encoded import EncodedTensor


@dataclass(frozen=True, slots=True)
class Join:
    """Tensors of one name with these `suffixes` are one tensor without a suffix, encoded.

    Args:
        encode: (the name without a suffix, the tensors in the order of the suffixes) -> that tensor, which is decoded
            as it is written. Raises ModelLoadError: they do not belong together.
    """

    suffixes: tuple[str, ...]
    encode: Callable[[str, tuple[Tensor, ...]], EncodedTensor]


def whole_name(joins: tuple[Join, ...], name: str) -> str:
    """The name of the tensor that this one is, or is a part of."""
    suffixes = (suffix for join in joins for suffix in join.suffixes if name.endswith(suffix))
    return name.removesuffix(next(suffixes, ""))


class Joining:
    """Collects tensors by the `joins` of a family.

    Attributes:
        num_joined, num_bytes: tensors that were joined, and the bytes of what they were joined from.
    """

    def __init__(self, joins: tuple[Join, ...]):
        self._joins = joins
        self._waiting: dict[str, dict[str, Tensor]] = {}
        self.num_joined = self.num_bytes = 0

    def add(self, name: str, tensor: Tensor) -> tuple[str, Tensor | EncodedTensor] | None:
        """The tensor, or the one that it completes, with its name; None: others are to come.

        Raises:
            ModelLoadError: tensors do not belong together.
        """
        for join in self._joins:
            for suffix in join.suffixes:
                if name.endswith(suffix):
                    return self._collect(join, name.removesuffix(suffix), suffix, tensor)
        return name, tensor

    def incomplete(self) -> Iterator[tuple[str, str]]:
        """(name of a tensor, name of a part that it lacks)."""
        for join in self._joins:
            for whole, parts in self._waiting.items():
                if parts.keys() <= set(join.suffixes):
                    yield from ((whole, whole + suffix) for suffix in join.suffixes if suffix not in parts)

    def _collect(self, join: Join, whole: str, suffix: str, tensor: Tensor) -> tuple[str, EncodedTensor] | None:
        parts = self._waiting.setdefault(whole, {})
        parts[suffix] = tensor
        if len(parts) < len(join.suffixes):
            return None
        del self._waiting[whole]
        self.num_joined += 1
        self.num_bytes += sum(part.nbytes for part in parts.values())
        return whole, join.encode(whole, tuple(parts[each] for each in join.suffixes))
