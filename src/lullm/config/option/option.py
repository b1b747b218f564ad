"""Option: one declaration of an option, from which flags, documentation and checks follow.

A dataclass declares its options as fields: the annotation gives the type, and `option(...)` the default, the help, the
group and the bounds. `options_of` reads them back. A tuple of strings is an option that may be given several times.
"""

import dataclasses
import math
from types import NoneType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin

from lullm.errors import ConfigError
from lullm.units import format_bytes

T = TypeVar("T")
Group = Literal[
    "listening", "access", "requests", "monitoring", "fleet",
    "model", "prompts", "LoRA", "device", "KV cache", "scheduling", "log-probabilities", "replies", "sleep", "idle",
]  # fmt: skip
"""Options of one group are together in the help, in this order of groups."""


def option(default: T, help: str, group: Group, **bounds: Any) -> T:
    """A field of a dataclass: its default and its declaration. `bounds`: `least` to `value_name` of `Option`."""
    field: T = dataclasses.field(default=default, metadata={"help": help, "group": group, **bounds})
    return field


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        kind: str, int, float or bool.
        choices: of a string; empty: any.
        is_optional: None is a value.
        takes_class: a class is a value, too, beside the text that names it.
        help: half a sentence for the command line and the documentation; it names the default where that is None.
        least, most: inclusive bounds; above, below: exclusive ones.
        unit: the unit of a number, such as 'bytes'.
        advice: what to use instead of a value outside `choices`.
        is_repeated: it may be given several times; its value is a tuple.
        flag: its name on the command line, where that differs; empty: it has none.
        value_name: the placeholder of a string in the help, such as 'FILE'.
        off: the value of a string that `--no-FLAG` gives; None: there is no such flag.
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
    is_repeated: bool = False
    flag: str | None = None
    value_name: str | None = None
    off: str | None = None

    @property
    def said_name(self) -> str:
        """Its name in errors, which the command line changes to a flag."""
        return self.flag.replace("-", "_") if self.flag else self.name

    @property
    def shown_help(self) -> str:
        """The help with the default at its end."""
        if self.default is None or "default:" in self.help:
            return self.help
        return f"{self.help} (default: {self.shown_default})"

    @property
    def shown_default(self) -> str:
        """The default in words."""
        if self.kind is bool and self.default is not None:
            return "on" if self.default else "off"
        if self.unit == "bytes" and self.default is not None:
            return format_bytes(self.default).replace(".0 ", "")
        return str(self.default)

    def check(self, value: object) -> None:
        """Check that `value` is valid for this option. Raises ConfigError."""
        if (value is None and self.is_optional) or (isinstance(value, type) and self.takes_class):
            return
        if self.is_repeated:
            if not (isinstance(value, tuple) and all(isinstance(each, str) and has_utf8(each) for each in value)):
                raise ConfigError(f"{self.said_name} must be a tuple of strings, not {value!r}")
        elif self.choices:
            if value not in self.choices:
                names = ", ".join(["None"] * self.is_optional + list(self.choices))
                advice = "" if self.advice is None else f"; {self.advice}"
                raise ConfigError(f"{self.said_name} must be one of {names}, not {value!r}{advice}")
        elif self.kind is bool:
            if not isinstance(value, bool):
                names = "True, False or None" if self.is_optional else "True or False"
                raise ConfigError(f"{self.said_name} must be {names}, not {value!r}")
        elif self.kind is str:
            if not isinstance(value, str):
                noun = "a string or a class" if self.takes_class else "a string"
                raise ConfigError(f"{self.said_name} must be {noun}, not {value!r}")
            if not has_utf8(value):
                raise ConfigError(f"{self.said_name} must be UTF-8, not {value!r}")
        elif not self._is_within(value):
            raise ConfigError(f"{self.said_name} must be {self._range}, not {value!r}")

    def _is_within(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else (int, float)):
            return False
        return self.least <= value <= self.most and self.above < value < self.below

    @property
    def _range(self) -> str:
        """Such as 'an integer of at least 1', or 'a number of seconds above 0'."""
        noun = "an integer" if self.kind is int else f"a number of {self.unit}" if self.unit else "a number"
        bounds = [
            f"{words} {bound}"
            for words, bound in (
                ("of at least", self.least), ("above", self.above), ("at most", self.most), ("below", self.below),
            )
            if math.isfinite(bound)
        ]  # fmt: skip
        return f"{noun} {' and '.join(bounds)}"


def has_utf8(text: str) -> bool:
    """Whether it can be sent to other processes and pages; half a surrogate pair has no UTF-8."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def options_of(declaring: type) -> tuple[Option, ...]:
    """The options that a dataclass declares, in the order of their groups."""
    found = [_read(field) for field in dataclasses.fields(declaring)]
    return tuple(each for group in get_args(Group) for each in found if each.group == group)


def described(declaring: type) -> str:
    """The options of a dataclass as the `Args` section of a docstring, a line each."""
    return "\n".join(["    Args:", *(f"        {each.name}: {each.shown_help}." for each in options_of(declaring))])


def _read(field: "dataclasses.Field[Any]") -> Option:
    arms = get_args(field.type)
    is_choice, is_repeated = (get_origin(field.type) is kind for kind in (Literal, tuple))
    kind = str if is_choice else next((arm for arm in arms if arm is not NoneType), field.type)
    return Option(
        name=field.name,
        kind=cast(type, kind),
        choices=tuple(arm for arm in arms if arm is not None) if is_choice else (),
        is_optional=(None if is_choice else NoneType) in arms,
        default=field.default,
        is_repeated=is_repeated,
        takes_class=type in arms,
        **field.metadata,
    )
