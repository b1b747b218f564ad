"""ChatTemplate: messages -> prompt text, by the Jinja template that comes with a model.

Templates are programs from elsewhere, so they run in Jinja's sandbox, and with bounds: steps (loop rounds, calls,
filters), size of the result, size of a value. The bounds stop accidents and simple attacks; they are no proof against a
template built to exhaust memory inside a single filter. A model's folder remains something to choose with care.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from lullm.errors import InvalidRequestError, ModelLoadError

MAX_STEPS = 10_000_000  # empty loop rounds; what else takes time costs several, so that all of them last a few seconds
_CALL_STEPS = 25  # a call or a filter
_LOOP_CALL_STEPS = 100
_LAZY_ROUND_STEPS = 5
MAX_CHARS = 32_000_000
_MAX_INT_BITS = 4096
_PARAM = "messages"

Message = Mapping[str, Any]


class _Rejected(Exception):
    """A template's own `raise_exception`, or a bound it ran into."""


class ChatTemplate:
    """A model's chat template. Rendering is thread-safe and leaves its arguments alone.

    Args:
        source: the template, or several by name; then 'tool_use' is taken for calls with tools, else 'default'.
        special_tokens: name -> text, visible to the template (`eos_token`, ...).

    Raises:
        ModelLoadError: not a valid template, or several and no 'default'.
    """

    def __init__(self, source: str | Mapping[str, str], special_tokens: Mapping[str, str]):
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        self._special_tokens = dict(special_tokens)
        if "default" not in self.sources:
            raise ModelLoadError(f"no chat template is named 'default', only {', '.join(self.sources) or 'none'}")
        environment = _Environment()
        self._steps = environment.steps
        self._templates = {name: environment.compile_bounded(name, text) for name, text in self.sources.items()}

    def render(
        self,
        messages: Sequence[Message],
        /,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt text. It holds the special tokens already: encode it with `add_special_tokens=False`.

        A message has `role` and `content`: a string, or OpenAI's list of text parts, which are joined with newlines.
        Content may be missing beside `tool_calls`; their `arguments` may be JSON text, the template sees them parsed.
        `kwargs` are visible to the template as they are (`enable_thinking=False`).

        Raises:
            InvalidRequestError: malformed messages or tools; or the template refused them, or failed with them.
            ModelLoadError: the template did what the sandbox forbids.
        """
        if "messages" in kwargs:
            raise InvalidRequestError("messages cannot be a template argument too", _PARAM)
        if tools is not None and not (_is_list(tools) and all(isinstance(tool, Mapping) for tool in tools)):
            raise InvalidRequestError("tools must be a list of objects", "tools")
        variables = {
            **self._special_tokens,
            **kwargs,
            "messages": _checked_messages(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": list(tools) if tools else None,
        }
        template = self._templates.get("tool_use" if tools else "default", self._templates["default"])
        self._steps.left = MAX_STEPS
        try:
            return _join_bounded(template, variables)
        except SecurityError as error:
            raise ModelLoadError(f"the chat template does what its sandbox forbids: {error}") from None
        except _Rejected as error:
            raise InvalidRequestError(f"the chat template rejected the messages: {error}", _PARAM) from None
        except RecursionError:
            raise InvalidRequestError("the chat template recursed too deep", _PARAM) from None
        except Exception as error:  # a template can raise anything: an undefined name, a wrong type, ...
            raise InvalidRequestError(
                f"the chat template failed on these messages: {type(error).__name__}: {error}", _PARAM
            ) from None


def _join_bounded(template: jinja2.Template, variables: dict[str, Any]) -> str:
    pieces = []
    num_chars = 0
    for piece in template.generate(variables):
        num_chars += len(piece)
        _check_size(num_chars)
        pieces.append(piece)
    return "".join(pieces)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if not _is_list(messages) or not messages:
        raise InvalidRequestError("messages must be a list with at least one message", _PARAM)
    return [_checked_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _checked_message(message: Message, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object with role and content", _PARAM)
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise InvalidRequestError(f"{where}: role must be a string such as 'user'", _PARAM)
    checked = dict(message)
    tool_calls = message.get("tool_calls")
    if tool_calls:
        checked["tool_calls"] = _checked_tool_calls(tool_calls, f"{where}.tool_calls")
    content = message.get("content")
    if content is None and tool_calls:
        checked["content"] = ""
    else:
        checked["content"] = _flat_content(content, f"{where}.content")
    return checked


def _flat_content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not _is_list(content):
        raise InvalidRequestError(f"{where} must be a string or a list of text parts", _PARAM)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind is None:
            raise InvalidRequestError(f"{where}[{index}] must be an object with a type", _PARAM)
        if kind != "text":
            raise InvalidRequestError(
                f"{where}[{index}]: parts of type {kind!r} are not supported, only 'text'", _PARAM
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequestError(f"{where}[{index}]: text must be a string", _PARAM)
        texts.append(part["text"])
    return "\n".join(texts)


def _checked_tool_calls(tool_calls: Any, where: str) -> list[dict[str, Any]]:
    """With the arguments as objects: clients send JSON text, templates print `arguments | tojson`."""
    if not _is_list(tool_calls) or not all(isinstance(call, Mapping) for call in tool_calls):
        raise InvalidRequestError(f"{where} must be a list of objects", _PARAM)
    checked = []
    for index, call in enumerate(tool_calls):
        function = call.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"] or "{}")
            except (ValueError, RecursionError):
                raise InvalidRequestError(f"{where}[{index}].function.arguments is not JSON", _PARAM) from None
            call = {**call, "function": {**function, "arguments": arguments}}
        checked.append(dict(call))
    return checked


class _Steps(threading.local):
    """Steps that the rendering on this thread may still take."""

    left = 0


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it (the names and filters of transformers), with bounds."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"])
        self.steps = _Steps()
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["range"] = self.bounded_range
        self.filters["bounded"] = self.bounded
        del self.globals["lipsum"]  # filler text of any length

    def compile_bounded(self, name: str, source: str) -> jinja2.Template:
        """Compile, with loops counted and concatenations bounded."""
        try:
            return self.from_string(_BoundLoops().visit(self.parse(source)))
        except jinja2.TemplateSyntaxError as error:
            raise ModelLoadError(f"chat template {name!r}, line {error.lineno}: {error.message}") from None
        except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError, TypeError) as error:
            raise ModelLoadError(f"chat template {name!r} cannot be compiled: {error}") from None

    def spend(self, num_steps: int) -> None:
        self.steps.left -= num_steps
        if self.steps.left < 0:
            raise _Rejected("it takes too many steps")

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # The odd names are Jinja's: a template may pass keyword arguments named self and context.
        if isinstance(__obj, LoopContext) and args:  # a recursive loop's `loop(children)`
            __self.spend(_LOOP_CALL_STEPS)
            args = (__self.count_rounds(args[0]), *args[1:])
        return __self.bounded(super().call(__context, __obj, *args, **kwargs))

    def bounded(self, value: Any) -> Any:
        """What a call or a filter gave, counted and not too large."""
        self.spend(_CALL_STEPS)
        _check_size(_size(value))
        return value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_INT_BITS:
                raise _Rejected("a number in it grew too large")
        elif operator == "+":
            _check_size(_size(left) + _size(right))
        elif operator == "*" and isinstance(left, int) != isinstance(right, int):
            text, times = (right, left) if isinstance(left, int) else (left, right)
            _check_size(_size(text) * times if isinstance(times, int) else 0)
        return super().call_binop(context, operator, left, right)

    def count_rounds(self, values: Any) -> Any:
        """What a loop runs over; paid for at once where its length is known, so that rounds keep their speed."""
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
        """`range`, at the cost of its length: filters (`range(n) | sum`) run through it without loop rounds."""
        numbers = range(*args)
        self.spend(len(numbers))
        return numbers


class _BoundLoops(NodeTransformer):
    """Puts the environment's counters into a parsed template."""

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
    """`node | bounded`; None stands for the text of the block that the filter belongs to."""
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
        raise _Rejected(f"its text grew beyond {MAX_CHARS} characters")


def _raise_exception(message: str) -> NoReturn:
    raise _Rejected(message)


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
