"""Filters, tests and methods with bounded time and result, or with a check before they run.

Jinja has others (`center`, `format`, `batch`, ...). Those can make a value of any size from a short argument in one C
call.
"""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

from jinja2 import pass_context
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS

from lullm.text.template.failure import OutOfBounds
from lullm.text.template.meter import CHARS_PER_STEP, Meter, deep_size, depth

_FILTER_STEPS = 10
_MAX_INDENT = 16
_MAX_SEPARATOR = 16
_NUMBER_CHARS = 20
_JSON_CHARS = 12
"""Characters of JSON per character or item: a character beyond U+FFFF is two escapes."""

_LINEAR_FILTERS = frozenset(
    {
        "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "int", "items",
        "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "safe", "select",
        "selectattr", "sort", "string", "title", "trim", "unique", "upper",
    }
)  # fmt: skip
_ELEMENT_FILTERS = frozenset(
    {
        "d", "default", "first", "last", "count", "length", "map", "select", "selectattr", "reject", "rejectattr",
    }
)  # fmt: skip
"""Filters that return an element or no new value, so that their result is not measured."""
_CHECKED_FILTERS = frozenset({"join", "replace", "indent", "tojson"})
_CHEAP_TESTS = frozenset(
    {
        "boolean", "callable", "defined", "divisibleby", "even", "false", "filter", "float", "integer", "iterable",
        "lower", "mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined",
        "upper",
    }
)  # fmt: skip
_COMPARING_TESTS = frozenset(
    {
        "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<", "lt", "lessthan", "<=", "le",
        "in",
    }
)  # fmt: skip

_STRING_METHODS = frozenset(
    {
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split",
        "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    }
)  # fmt: skip
BOUNDED_METHODS: dict[type, frozenset[str]] = {
    str: _STRING_METHODS,
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"count", "index", "copy"}),
    tuple: frozenset({"count", "index"}),
}
ELEMENT_METHODS = frozenset({"get"})
COMPARING_METHODS = frozenset({"count", "index"})


def make_filters(meter: Meter, only_bounded: bool) -> dict[str, Callable[..., Any]]:
    """The filters by name, all metered. With `only_bounded` the others raise OutOfBounds when they are called."""
    filters: dict[str, Callable[..., Any]] = {}
    for name, function in (FILTERS | {"tojson": to_json}).items():
        if only_bounded and name not in _LINEAR_FILTERS | _CHECKED_FILTERS:
            filters[name] = _refusal(name)
        else:
            filters[name] = _metered(meter, name, function)
    return filters


def make_tests(meter: Meter, only_bounded: bool) -> dict[str, Callable[..., Any]]:
    """The tests by name, those that compare values metered. `only_bounded` as for filters."""
    tests: dict[str, Callable[..., Any]] = {}
    for name, function in TESTS.items():
        if name in _COMPARING_TESTS:
            tests[name] = _comparison(meter, cast(Callable[..., Any], function))
        else:
            refused = only_bounded and name not in _CHEAP_TESTS
            tests[name] = _refusal(name) if refused else cast(Callable[..., Any], function)
    return tests


def check_method(meter: Meter, name: str, text: str, args: tuple[Any, ...]) -> None:
    """Raises OutOfBounds: the result of this method of a string would be too large."""
    if name == "join" and args:
        _check_join(meter, args[0], text)
    elif name == "replace" and len(args) > 1:
        _check_replace(meter, text, *args[:2])


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter: no HTML escapes, keys in their order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refusal(name: str) -> Callable[..., Any]:
    @pass_context
    def refuse(_context: Context, *_args: Any, **_kwargs: Any) -> Any:
        raise OutOfBounds(f"it uses {name!r}, whose result may have any size")

    return refuse


def _metered(meter: Meter, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with its arguments and its result weighed.

    It takes the context, so that the compiler cannot compute it in advance: `{{ 'a' | center(999999999) }}`.
    """
    passes = getattr(function, "jinja_pass_arg", None)  # the argument that the function takes before the value
    passed = {"context": "", "eval_context": "eval_ctx", "environment": "environment"}[passes.name] if passes else None
    gives_element = name in _ELEMENT_FILTERS
    check = _CHECKS.get(name)

    @pass_context
    @functools.wraps(function)
    def call(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter.spend(_FILTER_STEPS)
        if isinstance(value, str) or not gives_element:
            meter.weigh(value)
        if check is not None:
            if isinstance(value, Iterator):
                value = list(value)  # it can be read only once, and the check reads it
            check(meter, value, *args, **kwargs)
        if passed is not None:
            args = (value, *args)
            value = getattr(context, passed) if passed else context
        result = function(value, *args, **kwargs)
        if isinstance(result, str):
            meter.check_size(len(result))
        elif not gives_element:
            meter.weigh(result)
        return result

    return call


def _comparison(meter: Meter, function: Callable[..., Any]) -> Callable[..., Any]:
    def compare(*values: Any) -> Any:
        for value in values:
            meter.weigh(value)
        return function(*values)

    return compare


def _check_join(meter: Meter, values: Any, separator: Any = "", attribute: Any = None) -> None:
    if hasattr(values, "__len__"):
        meter.check_size(meter.measure(values) + len(values) * (_NUMBER_CHARS + len(str(separator))))


def _check_replace(meter: Meter, text: Any, old: Any, new: Any, count: Any = None) -> None:
    for value in (text, old, new):
        meter.measure(value)
    text, old, new = str(text), str(old), str(new)
    meter.check_size(len(text) + text.count(old) * len(new))


def _check_indent(meter: Meter, text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    if not isinstance(width, int) or width > _MAX_INDENT:
        raise OutOfBounds(f"it indents by more than {_MAX_INDENT}")
    meter.check_size(meter.measure(text) + (str(text).count("\n") + 1) * width)


def _check_json(
    meter: Meter,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> None:
    size, num_items = deep_size(value, meter.max_size, meter.steps_left)
    meter.check_size(size)
    meter.spend(num_items)
    for separator in separators or ():
        if len(separator) > _MAX_SEPARATOR:
            raise OutOfBounds(f"its separators are longer than {_MAX_SEPARATOR}")
    if indent is not None:
        if len(indent) > _MAX_INDENT if isinstance(indent, str) else int(indent) > _MAX_INDENT:
            raise OutOfBounds(f"it indents by more than {_MAX_INDENT}")
        meter.check_size(size + num_items * depth(value) * _MAX_INDENT)
    meter.spend(_JSON_CHARS * size // CHARS_PER_STEP)


_CHECKS: dict[str, Callable[..., None]] = {
    "join": _check_join,
    "replace": _check_replace,
    "indent": _check_indent,
    "tojson": _check_json,
}
