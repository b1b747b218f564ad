"""Numbers of the descriptors that a worker process inherits."""

import json
from dataclasses import asdict, dataclass


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
