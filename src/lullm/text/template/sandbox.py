"""Sandbox: runs the templates of a model's folder, which are foreign programs, within bounds.

It is Jinja's own sandbox with a `Meter`: loop rounds, calls and filters cost steps, and every value has a largest size.
With `only_bounded` every operation has bounded time and results, so it is safe beside an event loop. Without it, a
filter such as `center` may take any time and memory inside one C call: such a sandbox belongs into a process that can
be killed.
"""

import types
import warnings
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from lullm.text.template.counted import CHECKS_SYNTAX, counted
from lullm.text.template.failure import Broken, Failed, Forbidden, OutOfBounds, Rejected, TemplateFailure
from lullm.text.template.growth import (
    BOUNDED_METHODS,
    COMPARING_METHODS,
    ELEMENT_METHODS,
    check_method,
    make_filters,
    make_tests,
)
from lullm.text.template.meter import CHARS_PER_STEP, Meter

_CALL_STEPS = 10
_LOOP_CALL_STEPS = 100
_LAZY_ROUND_STEPS = 5
_MAX_INT_BITS = 4096
_MAX_TIME_FORMAT = 256
_HARMLESS = (BlockReference, Undefined, LoopContext)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja with the names and filters that chat templates expect (those of transformers), and with bounds."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, only_bounded: bool) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, "jinja2.ext.loopcontrols"],
            optimized=False,  # the compiler would fold constants, which the meter would not see
        )
        self._only_bounded = only_bounded
        self._meter = Meter()
        self.finalize = self._printed
        self.filters.update(make_filters(self._meter, only_bounded))
        self.filters.update(_weigh=self._meter.weigh, _rounds=self._rounds, _concat=self._concat)
        self.tests.update(make_tests(self._meter, only_bounded))
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["range"] = self._range
        del self.globals["lipsum"]  # filler text of any length
        self._callables = (self._range, _raise_exception, _strftime_now, Namespace, dict)

    def compile_bounded(self, source: str) -> jinja2.Template | None:
        """The template; None if it has syntax that only a killable process may compile. Raises Broken."""
        try:
            tree = self.parse(source)
            if self._only_bounded and any(type(node) not in CHECKS_SYNTAX for node in tree.find_all(nodes.Node)):
                return None
            with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # such as for `1[0]`
                return self.from_string(counted(tree))
        except jinja2.TemplateSyntaxError as error:
            raise Broken(f"line {error.lineno}: {error.message}") from None
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, TypeError, OverflowError) as error:
            raise Broken(f"it cannot be compiled: {error}") from None

    def render(self, template: jinja2.Template, variables: dict[str, Any], max_steps: int, max_size: int) -> str:
        """The text of a template of this sandbox. Thread-safe. Raises TemplateFailure, MemoryError."""
        meter = self._meter
        meter.steps_left, meter.max_size = max_steps, max_size
        pieces = []
        num_chars = 0
        try:
            for piece in template.generate(variables):
                num_chars += len(piece)
                meter.check_size(num_chars)
                pieces.append(piece)
        except (TemplateFailure, MemoryError):
            raise
        except SecurityError as error:
            raise Forbidden(str(error)) from None
        except RecursionError:
            raise Failed("it recursed too deep") from None
        except Exception as error:  # a template may raise any error
            # Jinja's rewritten traceback has a frame that holds the error: a cycle, and with it all callers' frames and
            # whatever they are building, until some garbage collection.
            error.__traceback__ = None
            raise Failed(f"{type(error).__name__}: {error}") from None
        return "".join(pieces)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # The odd names are Jinja's: a template may pass keyword arguments named self and context.
        meter = __self._meter
        meter.spend(_CALL_STEPS)
        if isinstance(__obj, types.BuiltinMethodType):
            return __self._call_method(__context, __obj, args, kwargs)
        if isinstance(__obj, LoopContext) and args:  # a recursive loop's `loop(children)`
            meter.spend(_LOOP_CALL_STEPS)
            args = (__self._rounds(args[0], 1), *args[1:])
        elif isinstance(__obj, Macro):
            if __obj.catch_varargs or __obj.catch_kwargs:  # they collect the arguments in a list or a dict
                meter.measure([args, kwargs])
        elif __self._only_bounded and not (isinstance(__obj, _HARMLESS) or __obj in __self._callables):
            raise OutOfBounds("it calls what is not known to be bounded")
        return meter.weigh(super().call(__context, __obj, *args, **kwargs))

    def _call_method(self, context: Context, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of a string, list or dict."""
        owner, name = method.__self__, method.__name__
        if self._only_bounded and name not in BOUNDED_METHODS.get(type(owner), ()):
            raise OutOfBounds(f"it uses {name!r}, whose result may have any size")
        if name in ELEMENT_METHODS:
            return super().call(context, method, *args, **kwargs)
        if name in COMPARING_METHODS or isinstance(owner, str):
            self._meter.weigh(owner)
        if isinstance(owner, str):
            check_method(self._meter, name, owner, args)
        result = super().call(context, method, *args, **kwargs)
        return self._meter.weigh(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and type(left) is str and type(right) is str:  # by far the most frequent
            size = len(left) + len(right)
            if size >= CHARS_PER_STEP:
                self._meter.check_size(size)
                self._meter.spend(size // CHARS_PER_STEP)
            return left + right
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_INT_BITS and operator != "%":
                raise OutOfBounds("a number in it grew too large")
            return super().call_binop(context, operator, left, right)
        if operator == "%" and isinstance(left, str) and self._only_bounded:
            raise OutOfBounds("it uses '%', whose result may have any size")
        if operator == "+":
            self._meter.check_size(_len(left) + _len(right))
        elif operator == "*" and isinstance(left, int) != isinstance(right, int):
            text, times = (right, left) if isinstance(left, int) else (left, right)
            self._meter.check_size(_len(text) * times if isinstance(times, int) else 0)
        return self._meter.weigh(super().call_binop(context, operator, left, right))

    @pass_context
    def _printed(self, _context: Context, value: Any) -> Any:
        """The value to print. It takes the context, so that the compiler prints no constants in advance."""
        if type(value) is not str or len(value) >= CHARS_PER_STEP:
            self._meter.measure(value)
        return value

    def _rounds(self, values: Any, steps_per_round: int) -> Any:
        """The values of a loop. If their number is known, all steps are spent at once, so that rounds stay fast."""
        if not hasattr(values, "__len__"):
            return self._counted(values, steps_per_round)
        self._meter.spend(len(values) * steps_per_round)
        return values

    def _counted(self, values: Iterable[Any], steps_per_round: int) -> Iterator[Any]:
        for value in values:
            self._meter.spend(_LAZY_ROUND_STEPS + steps_per_round)
            yield value

    def _concat(self, *values: Any) -> str:
        """The `~` operator."""
        for value in values:
            if not isinstance(value, str):
                self._meter.measure(value)
        texts = [str(value) for value in values]
        self._meter.check_size(sum(map(len, texts)))
        return str(self._meter.weigh("".join(texts)))

    def _range(self, *args: int) -> range:
        """`range`, for as many steps as its length, because filters (`range(n) | sum`) need no loop rounds."""
        numbers = range(*args)
        self._meter.spend(len(numbers))
        return numbers


class _GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's words for training; prints its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


def _len(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _raise_exception(message: str) -> NoReturn:
    raise Rejected(message)


def _strftime_now(format: str) -> str:
    if len(format) > _MAX_TIME_FORMAT:
        raise OutOfBounds(f"its time format is longer than {_MAX_TIME_FORMAT}")
    return datetime.now().strftime(format)
