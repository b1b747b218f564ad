"""RemoteCall: what a caller of `collective_rpc` asks of every worker."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class RemoteCall(NamedTuple):
    """A function that takes the worker first, or a worker's method by its name, and what else it is called with.

    `timeout`: seconds to wait for all workers; None: no limit.
    """

    method: str | Callable[..., Any]
    timeout: float | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
