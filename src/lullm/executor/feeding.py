"""Feeding: an update takes weights from a caller's iterable, while the engine does nothing else.

So the iterable may not call the engine: each would wait for the other. Loads no torch.
"""

import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from lullm.errors import InvalidRequestError

if TYPE_CHECKING:
    from torch import Tensor

_feeding: ContextVar[tuple["Feeding", ...]] = ContextVar("lullm_feeding", default=())
"""The updates whose iterables run in this context. Tasks and threads that they start with it inherit it."""


class Feeding:
    """The updates of one engine."""

    def items(self, weights: "Iterable[tuple[str, Tensor]]") -> "Iterator[tuple[str, Tensor]]":
        """The same weights, each checked. Raises as iterating and `checked_weight` do."""
        iterator = iter(weights)
        while True:
            outer = _feeding.set((*_feeding.get(), self))
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                _feeding.reset(outer)
            yield checked_weight(item)

    def check(self) -> None:
        """Check that a call may wait for the engine. Raises InvalidRequestError: the engine waits for a weight."""
        if self in _feeding.get():
            raise InvalidRequestError(
                "the engine waits for the next weight of update_weights: what iterates them cannot call it; "
                "make them before (a list), or call update_weights once for each part",
                "weights",
            )


def checked_weight(item: Any) -> "tuple[str, Tensor]":
    """A caller's item, if it is a weight. Raises InvalidRequestError."""
    torch = sys.modules.get("torch")  # a caller that has a tensor has loaded torch
    try:
        name, tensor = item
    except (TypeError, ValueError):
        hint = "; of a state dict give its items()" if isinstance(item, str) else ""
        raise _no_pair(f"{type(item).__name__} is none{hint}") from None
    if not isinstance(name, str) or torch is None or not isinstance(tensor, torch.Tensor):
        raise _no_pair(f"{type(name).__name__} and {type(tensor).__name__} are not")
    if tensor.is_meta:
        raise InvalidRequestError(f"update_weights: {name} is on the meta device and has no values", "weights")
    if tensor.layout != torch.strided:
        raise InvalidRequestError(f"update_weights: {name} is {tensor.layout}; give {name}.to_dense()", "weights")
    return name, tensor


def _no_pair(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"update_weights takes pairs of a name and a tensor: {reason}", "weights")
