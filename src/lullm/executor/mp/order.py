"""What a worker process is started with: numbers of inherited descriptors, and an order in one of them."""

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

from lullm.executor.remote.codec import decode, encode


@dataclass(frozen=True, slots=True)
class Descriptors:
    """Numbers of descriptors, the same in both processes.

    Attributes:
        order: memory with the `WorkerOrder`. lifeline: a socket that ends with either process; log records go over it.
        commands, answers: memory of rings. own_bell, engine_bell: of the process, and of the engine's.
    """

    order: int
    lifeline: int
    commands: int
    answers: int
    own_bell: int
    engine_bell: int

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Descriptors":
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """What a process is to become.

    Attributes:
        opener: `module:function`; (*arguments) -> the worker that it serves. arguments: plain data.
        gives_results: the results of its steps are wanted.
        beat_s: how often it gives a sign of life. log_level: of lullm's records.
        descriptors: that it inherits beside its own, under the same numbers.
        cpus: on which it may run; None: all that the engine's process may use.
        environment: variables of its own, beside those of the engine's process.
    """

    rank: int
    opener: str
    arguments: list[Any]
    gives_results: bool
    beat_s: float
    log_level: int
    descriptors: list[int] = field(default_factory=list)
    cpus: list[int] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def to_memory(self) -> int:
        """The descriptor of new memory that holds it. Raises TypeError: an argument is no plain data."""
        fd = os.memfd_create("lullm-order")
        with os.fdopen(os.dup(fd), "wb") as file:
            file.writelines(encode(self))
        return fd

    @classmethod
    def from_memory(cls, fd: int) -> "WorkerOrder":
        """Read it, and close the descriptor."""
        os.lseek(fd, 0, os.SEEK_SET)
        with os.fdopen(fd, "rb") as file:
            order: WorkerOrder = decode(memoryview(bytearray(file.read())))
        return order
