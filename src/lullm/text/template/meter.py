"""Meter: the steps that a rendering may still take, and the largest size of its values.

A value that prints in many characters can be small in memory: `ns.s = [ns.s, ns.s]`, forty times, prints 2 ** 40 items.
So a list or dict is measured in depth when it is created, each item as often as it occurs. No other operation makes a
value deeper, so printing and comparing are bounded too.
"""

import threading
from collections.abc import ItemsView, ValuesView
from typing import Any

from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.utils import Cycler, Joiner, Namespace

from lullm.text.template.failure import OutOfBounds

_ITEMS_VIEW: type = type({}.items())
_VALUES_VIEW: type = type({}.values())
_CONTAINERS: tuple[type[Any], ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    ItemsView,
    ValuesView,
    _ITEMS_VIEW,
    _VALUES_VIEW,
)
_OPAQUE = (Namespace, Cycler, Joiner, LoopContext, Macro, Context, BlockReference)
CHARS_PER_STEP = 64
"""So many characters take about the time of a step, 0.1 us, in the slower methods of strings."""


class Meter(threading.local):
    """The state of the rendering on this thread.

    Attributes:
        steps_left: loop rounds and calls. max_size: of any value, in characters and items.
    """

    steps_left = 0
    max_size = 0

    def spend(self, num_steps: int) -> None:
        """Raises OutOfBounds: there are not so many steps left."""
        self.steps_left -= num_steps
        if self.steps_left < 0:
            raise OutOfBounds("it takes too many steps")

    def check_size(self, size: int) -> None:
        """Raises OutOfBounds: no value may be so large."""
        if size > self.max_size:
            raise OutOfBounds(f"its text grew beyond {self.max_size} characters")

    def weigh(self, value: Any) -> Any:
        """The value, after spending the steps for reading it once."""
        if isinstance(value, str):
            if len(value) >= CHARS_PER_STEP:
                self.spend(len(value) // CHARS_PER_STEP)
        elif isinstance(value, _CONTAINERS):
            self.measure(value)
        return value

    def measure(self, value: Any) -> int:
        """The value's deep size, at most a little above `max_size`. Spends the steps for reading it once.

        Raises:
            OutOfBounds: it is too large, or holds an object of Jinja's, which may hold anything.
        """
        if isinstance(value, str):
            size, num_items = len(value), 1
        else:
            size, num_items = deep_size(value, self.max_size, self.steps_left)
        self.check_size(size)
        self.spend(num_items + size // CHARS_PER_STEP)
        return size


def deep_size(value: Any, limit: int, max_items: int | None = None) -> tuple[int, int]:
    """Characters and items together, and items alone, each as often as it occurs. O(items).

    Stops soon after `limit`, and after `max_items`.
    """
    max_items = limit if max_items is None else max_items
    size = num_items = 0
    stack = [value]
    while stack and size <= limit and num_items <= max_items:
        item = stack.pop()
        num_items += 1
        if isinstance(item, str):
            size += len(item) + 1
        elif isinstance(item, _CONTAINERS):
            size += len(item) + 1
            if size <= limit:
                stack.extend(item)
                if isinstance(item, dict):
                    stack.extend(item.values())
        elif isinstance(item, _OPAQUE):
            raise OutOfBounds("it puts an object of the template language into a list or prints it")
        else:
            size += 1 + item.bit_length() // 3 if isinstance(item, int) else 1
    return size, num_items


def depth(value: Any) -> int:
    """How many lists and dicts are inside each other. O(items)."""
    deepest = 0
    stack = [(value, 1)]
    while stack:
        item, level = stack.pop()
        deepest = max(deepest, level)
        if isinstance(item, dict):
            stack.extend((inner, level + 1) for inner in item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend((inner, level + 1) for inner in item)
    return deepest
