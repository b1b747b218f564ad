"""Sandbox: runs the templates of a model's folder, which are foreign programs, within bounds.

They run in Jinja's own sandbox. Bounds hold for the number of steps (loop rounds, calls, filters), and for the size of
the result and of each value. The bounds stop accidents and simple attacks, but not a template that exhausts memory
inside one filter. So a model's folder still has to be trusted.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from lullm.errors import ModelLoadError

MAX_STEPS = 10_000_000  # loop rounds; other work costs several steps, so that all steps together last a few seconds
_CALL_STEPS = 25  # a call or a filter
_LOOP_CALL_STEPS = 100
_LAZY_ROUND_STEPS = 5
MAX_CHARS = 32_000_000
_MAX_INT_BITS = 4096


class Rejected(Exception):
    """The template called `raise_exception`, or has reached a bound."""


class _Steps(threading.local):
    """The remaining steps of the rendering on this thread."""

    left = 0


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja with the names and filters that chat templates expect (those of transformers), and with bounds."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"])
        self._steps = _Steps()
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["range"] = self.bounded_range
        self.filters["bounded"] = self.bounded
        del self.globals["lipsum"]  # filler text of any length

    def compile_bounded(self, name: str, source: str) -> jinja2.Template:
        """Compile, with loops counted and concatenations bounded. Raises ModelLoadError: not a valid template."""
        try:
            return self.from_string(_BoundLoops().visit(self.parse(source)))
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"chat template {name!r}, line {error.lineno}: {error.message}") from None
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, TypeError) as error:
            raise ModelLoadError(f"chat template {name!r} cannot be compiled: {error}") from None

    def render(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """The text of a template of this sandbox. Thread-safe.

        Raises:
            Rejected, jinja2's SecurityError, RecursionError, and any error that the template causes.
        """
        self._steps.left = MAX_STEPS
        pieces = []
        num_chars = 0
        for piece in template.generate(variables):
            num_chars += len(piece)
            _check_size(num_chars)
            pieces.append(piece)
        return "".join(pieces)

    def spend(self, num_steps: int) -> None:
        self._steps.left -= num_steps
        if self._steps.left < 0:
            raise Rejected("it takes too many steps")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # The odd names are Jinja's: a template may pass keyword arguments named self and context.
        if isinstance(__obj, LoopContext) and args:  # a recursive loop's `loop(children)`
            __self.spend(_LOOP_CALL_STEPS)
            args = (__self.count_rounds(args[0]), *args[1:])
        return __self.bounded(super().call(__context, __obj, *args, **kwargs))

    def bounded(self, value: Any) -> Any:
        """The value of a call or a filter, after its steps and its size are checked. Raises Rejected."""
        self.spend(_CALL_STEPS)
        _check_size(_size(value))
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_INT_BITS:
                raise Rejected("a number in it grew too large")
        elif operator == "+":
            _check_size(_size(left) + _size(right))
        elif operator == "*" and isinstance(left, int) != isinstance(right, int):
            text, times = (right, left) if isinstance(left, int) else (left, right)
            _check_size(_size(text) * times if isinstance(times, int) else 0)
        return super().call_binop(context, operator, left, right)

    def count_rounds(self, values: Any) -> Any:
        """The values of a loop. If their number is known, all steps are spent at once, so that rounds stay fast."""
        if not hasattr(values, "__len__"):
            return self._counted(values)
        self.spend(len(values))
        return values

    def _counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.spend(_LAZY_ROUND_STEPS)
            yield value

    def bounded_concat(self, *values: Any) -> str:
        """The `~` operator."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)))
        return "".join(texts)

    def bounded_range(self, *args: int) -> range:
        """`range`, for as many steps as its length, because filters (`range(n) | sum`) need no loop rounds."""
        numbers = range(*args)
        self.spend(len(numbers))
        return numbers


class _BoundLoops(NodeTransformer):
    """Inserts the environment's counters into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _call("count_rounds", [node.iter], node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _call("bounded_concat", node.nodes, node.lineno)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:
        self.generic_visit(node)
        return _bounded(node, node.lineno)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        if node.filter is None:
            node.filter = _bounded(None, node.lineno)
        return node


def _bounded(node: nodes.Filter | None, lineno: int) -> nodes.Filter:
    """`node | bounded`. None: the text of the filter's block."""
    bounded = nodes.Filter(node, "bounded", [], [], None, None)
    bounded.set_lineno(lineno)
    return bounded


def _call(method: str, args: Sequence[nodes.Node], lineno: int) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)
    call.set_lineno(lineno)
    return call


class _GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's words for training; prints its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(lineno)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _check_size(num_chars: int) -> None:
    if num_chars > MAX_CHARS:
        raise Rejected(f"its text grew beyond {MAX_CHARS} characters")


def _raise_exception(message: str) -> NoReturn:
    raise Rejected(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter: no HTML escapes, keys in their order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
