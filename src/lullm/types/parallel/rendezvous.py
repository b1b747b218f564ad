"""Rendezvous: how the workers of an engine find each other, as plain data for new processes."""

from dataclasses import dataclass
from typing import Literal

Transport = Literal["memory", "gloo", "nccl"]
"""The transport of tensors: memory that workers of one host share, or torch.distributed, between hosts or GPUs."""

DEFAULT_TIMEOUT = 300.0
"""Seconds. A stage of a pipeline waits for a whole prefill of the stage before it; a death is noticed earlier."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A nameless file that all workers on this host inherit; no port is taken for the meeting.

    Args:
        descriptor: of the file, in the worker's process.
        timeout: seconds that a worker waits for the others, at the meeting and in each call.
    """

    descriptor: int
    transport: Transport
    timeout: float = DEFAULT_TIMEOUT


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The address of torch's TCPStore, which serves all workers, on any host that reaches it; see `LocalFile`."""

    host: str
    port: int
    transport: Transport = "gloo"
    timeout: float = DEFAULT_TIMEOUT


Rendezvous = LocalFile | StoreAddress
