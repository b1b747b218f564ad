"""Messages between an engine and its workers: a command has a number, and its answers have it, too."""

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
"""The number of the answer that a worker gives by itself, once it has loaded its model or failed to."""


@dataclass(frozen=True, slots=True)
class FunctionName:
    """Stands for a function or a class among what crosses: 'package.module:name'."""

    name: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "FunctionName":
        """Under which other processes import it. Raises UnsupportedError: they cannot."""
        try:
            name = importable_name(function)
            if find_importable(name) is function:
                return cls(name)
            reason = f"{name} is another function"
        except ConfigError as error:
            reason = str(error)
        raise UnsupportedError(f"collective_rpc sends no code to other processes, only a function's name: {reason}")


def with_names(values: Sequence[Any]) -> list[Any]:
    """The same, with names for what can be called. Raises UnsupportedError: one has none."""
    return [FunctionName.of(value) if callable(value) else value for value in values]


def with_functions(values: Sequence[Any]) -> list[Any]:
    """The reverse of `with_names`. Raises ConfigError: a name stands for nothing here."""
    return [find_importable(value.name) if isinstance(value, FunctionName) else value for value in values]


@dataclass(frozen=True, slots=True)
class _Message:
    number: int
    kind: Any
    content: Any = None

    def parts(self) -> list[Buffer]:
        """The bytes. Raises TypeError: the content is no plain data."""
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
    """What workers are to do. `content`: a plan; [verb, arguments]; [method, arguments, keywords]; None."""

    kind: CommandKind


@dataclass(frozen=True, slots=True)
class Reply(_Message):
    """What one worker has made of a command.

    `content`: a step's result; [version of the weights, value]; or [version of the weights, plain error].
    """

    kind: AnswerKind


class Transport(Protocol):
    """The engine's end of what connects it with its workers, which answer in the order of the commands."""

    @property
    def num_workers(self) -> int: ...

    @property
    def loss(self) -> Loss: ...

    def send(self, command: Command) -> None:
        """To every worker. Blocks while there is no room. Raises WorkerLostError."""
        ...

    def receive(self, timeout_s: float | None) -> list[tuple[int, Reply]]:
        """(rank, reply) of what has come, at least one; none: nothing came in time. Raises WorkerLostError."""
        ...

    def lose(self, rank: int, reason: str) -> None:
        """Give a worker up that has not answered: `loss` says so from now on, and all workers are killed."""
        ...

    def close(self, grace_s: float) -> None:
        """Stop the workers; after `grace_s` they are killed. Waits for their end. Idempotent."""
        ...


class Link(Protocol):
    """A worker's end of it. One thread reads, and one writes."""

    def receive(self) -> Command:
        """The next command. Blocks."""
        ...

    def send(self, reply: Reply) -> None:
        """Blocks while there is no room. Raises TypeError: the reply is no plain data."""
        ...
