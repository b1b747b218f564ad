"""Messages between an engine and its workers. A command has a number, which its answers repeat."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from lullm.errors import ConfigError, UnsupportedError
from lullm.executor.remote.codec import Buffer, decode, encode
from lullm.executor.remote.loss import Loss
from lullm.types.step import StepPlan, StepResult
from lullm.types.step_codec import decode_plan, decode_result, encode_plan, encode_result
from lullm.types.wire.importable import find_importable, importable_name

_HEADER = struct.Struct("<QB7x")

CommandKind = Literal["step", "call", "run", "stop"]
AnswerKind = Literal["result", "value", "error"]
_KINDS: tuple[CommandKind | AnswerKind, ...] = ("step", "call", "run", "stop", "result", "value", "error")

OPENING = 0
"""The number of a worker's first answer, which reports that it has loaded its model or failed to."""


@dataclass(frozen=True, slots=True)
class FunctionName:
    """The name 'package.module:name' in place of a function or a class in a message."""

    name: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "FunctionName":
        """The name under which other processes import it. Raises UnsupportedError: it has none."""
        try:
            name = importable_name(function)
            if find_importable(name) is function:
                return cls(name)
            reason = f"{name} is another function"
        except ConfigError as error:
            reason = str(error)
        raise UnsupportedError(f"collective_rpc sends no code to other processes, only a function's name: {reason}")


def with_names(values: Sequence[Any]) -> list[Any]:
    """The same values, with names in place of callables. Raises UnsupportedError: one has none."""
    return [FunctionName.of(value) if callable(value) else value for value in values]


def with_functions(values: Sequence[Any]) -> list[Any]:
    """The reverse of `with_names`. Raises ConfigError: nothing here has this name."""
    return [find_importable(value.name) if isinstance(value, FunctionName) else value for value in values]


@dataclass(frozen=True, slots=True)
class _Message:
    number: int
    kind: Any
    content: Any = None

    def parts(self) -> list[Buffer]:
        """The bytes. Raises TypeError: the content is not plain data."""
        content: list[Buffer]
        if isinstance(self.content, StepPlan):
            content = [encode_plan(self.content)]
        elif isinstance(self.content, StepResult):
            content = [encode_result(self.content)]
        else:
            content = encode(self.content)
        return [_HEADER.pack(self.number, _KINDS.index(self.kind)), *content]

    @classmethod
    def from_bytes(cls, data: bytearray) -> Self:
        number, code = _HEADER.unpack_from(data)
        kind, content = _KINDS[code], memoryview(data)[_HEADER.size :]
        codec: Callable[[memoryview], Any] = {"step": decode_plan, "result": decode_result}.get(kind, decode)
        return cls(number, kind, codec(content))


@dataclass(frozen=True, slots=True)
class Command(_Message):
    """A command to workers. `content`: a plan; [verb, arguments]; [method, arguments, keywords]; None."""

    kind: CommandKind


@dataclass(frozen=True, slots=True)
class Reply(_Message):
    """One worker's answer to a command.

    `content`: a step's result; [version of the weights, value]; or [version of the weights, plain error].
    """

    kind: AnswerKind


class Transport(Protocol):
    """The engine's end of the connection to its workers, which answer in the order of the commands."""

    @property
    def num_workers(self) -> int: ...

    @property
    def loss(self) -> Loss: ...

    def send(self, command: Command) -> None:
        """Send to every worker. Blocks while there is no room. Raises WorkerLostError."""
        ...

    def receive(self, timeout_s: float | None) -> list[tuple[int, Reply]]:
        """(rank, reply) of all replies that have come, at least one; none after `timeout_s`. Raises WorkerLostError."""
        ...

    def lose(self, rank: int, reason: str) -> None:
        """Give up a worker that has not answered: `loss` records it, and all workers are killed."""
        ...

    def close(self, grace_s: float) -> None:
        """Stop the workers; kill them after `grace_s`. Waits for their end. Idempotent."""
        ...


class Link(Protocol):
    """A worker's end of the connection. One thread reads, and one writes."""

    def receive(self) -> Command:
        """The next command. Blocks."""
        ...

    def send(self, reply: Reply) -> None:
        """Send a reply. Blocks while there is no room. Raises TypeError: it is not plain data."""
        ...
