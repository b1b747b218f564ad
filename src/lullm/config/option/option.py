"""Option: one declaration of an option, from which flags, documentation and checks follow.

A dataclass declares its options as fields: the annotation gives the type, and `option(...)` the default, the help, the
group and the bounds. `options_of` reads them back.
"""

import dataclasses
import math
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from lullm.errors import ConfigError

T = TypeVar("T")
Group = Literal["model", "device", "KV cache", "scheduling", "log-probabilities", "replies", "sleep", "idle"]
"""Options of one group stand together in the help, in this order of groups."""


def option(default: T, help: str, group: Group, **bounds: Any) -> T:
    """A field of a dataclass: its default and its declaration. `bounds`: `least` to `advice` of `Option`."""
    field: T = dataclasses.field(default=default, metadata={"help": help, "group": group, **bounds})
    return field


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        kind: str, int, float or bool. choices: of a string; empty: any. is_optional: None is a value.
        takes_class: a class is a value, too, beside the text that names it.
        help: half a sentence for the command line and the documentation; it names the default where that is None.
        least, most: bounds that are values themselves; above, below: bounds that are not.
        unit: what a number counts, such as 'bytes'.
        advice: what to do instead of giving another value than `choices`.
    """

    name: str
    kind: type
    choices: tuple[str, ...]
    is_optional: bool
    default: Any
    help: str
    group: Group
    takes_class: bool = False
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    unit: str | None = None
    advice: str | None = None

    @property
    def shown_help(self) -> str:
        """The help with the default at its end."""
        if self.default is None or "default:" in self.help:
            return self.help
        shown = {True: "on", False: "off"}[self.default] if self.kind is bool else self.default
        return f"{self.help} (default: {shown})"

    def check(self, value: object) -> None:
        """Return if `value` is one of this option's. Raises ConfigError."""
        if (value is None and self.is_optional) or (isinstance(value, type) and self.takes_class):
            return
        if self.choices:
            if value not in self.choices:
                names = ", ".join(["None"] * self.is_optional + list(self.choices))
                advice = "" if self.advice is None else f"; {self.advice}"
                raise ConfigError(f"{self.name} must be one of {names}, not {value!r}{advice}")
        elif self.kind is bool:
            if not isinstance(value, bool):
                names = "True, False or None" if self.is_optional else "True or False"
                raise ConfigError(f"{self.name} must be {names}, not {value!r}")
        elif self.kind is str:
            if not isinstance(value, str):
                noun = "a string or a class" if self.takes_class else "a string"
                raise ConfigError(f"{self.name} must be {noun}, not {value!r}")
        elif not self._is_within(value):
            raise ConfigError(f"{self.name} must be {self._range}, not {value!r}")

    def _is_within(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else (int, float)):
            return False
        return self.least <= value <= self.most and self.above < value < self.below

    @property
    def _range(self) -> str:
        """Such as 'an integer of at least 1', or 'a number of seconds above 0'."""
        noun = "an integer" if self.kind is int else f"a number of {self.unit}" if self.unit else "a number"
        bounds = [
            f"{words} {bound:g}"
            for words, bound in (
                ("of at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below),
            )
            if math.isfinite(bound)
        ]  # fmt: skip
        return f"{noun} {' and '.join(bounds)}"


def options_of(declaring: type) -> tuple[Option, ...]:
    """The options that a dataclass declares, in the order of their groups."""
    found = [_read(field) for field in dataclasses.fields(declaring)]
    return tuple(each for group in get_args(Group) for each in found if each.group == group)


def described(declaring: type) -> str:
    """The options of a dataclass as the `Args` section of a docstring, a line each."""
    return "\n".join(["    Args:", *(f"        {each.name}: {each.shown_help}." for each in options_of(declaring))])


def _read(field: "dataclasses.Field[Any]") -> Option:
    arms = get_args(field.type)
    is_choice = get_origin(field.type) is Literal
    kind = str if is_choice else next((arm for arm in arms if arm is not NoneType), field.type)
    return Option(
        name=field.name,
        kind=cast(type, kind),
        choices=tuple(arm for arm in arms if arm is not None) if is_choice else (),
        is_optional=(None if is_choice else NoneType) in arms,
        default=field.default,
        takes_class=type in arms,
        **field.metadata,
    )
