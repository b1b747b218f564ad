"""WorkerSpec: the task of a worker's process, as plain data that it is started with."""

import os
from dataclasses import dataclass, field
from typing import Any

from lullm.config.resolved import ResolvedConfig
from lullm.executor.remote.codec import decode, encode
from lullm.executor.remote.pulse import BEATS_PER_TIMEOUT
from lullm.log import get_logger
from lullm.types.parallel.placement import Placement
from lullm.types.wire.importable import find_importable

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The task of a worker's process.

    Attributes:
        opener: `module:function`; its call with `arguments`, which are plain data, returns the worker to serve.
        gives_results: the engine wants the results of its steps.
        beat_s: seconds between heartbeats.
        log_level: of lullm's records.
        descriptors: that it inherits beside its own, under the same numbers.
        cpus: on which it may run; None: all that the engine's process may use.
        environment: variables beside those of the engine's process.
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

    @classmethod
    def of_place(
        cls, config: ResolvedConfig, place: Placement, opener: str, arguments: list[Any], **own: Any
    ) -> "WorkerSpec":
        """The opener is called with the place and these arguments. `own`: other attributes of the process."""
        return cls(
            rank=place.rank,
            opener=opener,
            arguments=[place, *arguments],
            gives_results=place.pipeline.is_last and place.tensor.is_first,
            beat_s=config.worker_timeout / BEATS_PER_TIMEOUT,
            log_level=logger.getEffectiveLevel(),
            **own,
        )

    def open(self) -> Any:
        """Open the worker. Blocking. Raises ConfigError: this process finds no such opener; errors of the opener."""
        return find_importable(self.opener)(*self.arguments)

    def to_memory(self) -> int:
        """The descriptor of new memory that holds the spec. Raises TypeError: an argument is not plain data."""
        fd = os.memfd_create("lullm-worker-spec")
        with os.fdopen(os.dup(fd), "wb") as file:
            file.writelines(encode(self))
        return fd

    @classmethod
    def from_memory(cls, fd: int) -> "WorkerSpec":
        """Read it, and close the descriptor."""
        os.lseek(fd, 0, os.SEEK_SET)
        with os.fdopen(fd, "rb") as file:
            spec: WorkerSpec = decode(memoryview(bytearray(file.read())))
        return spec
