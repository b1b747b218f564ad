"""QueueBound: bounds the requests, and tokens of their prompts, that wait for the engine; others get 429."""

import contextlib
from collections.abc import Iterator, Sequence

from lullm.engine.client import EngineClient
from lullm.server.error import ApiError
from lullm.types.request import GenerateRequest

RETRY_S = 5


class QueueBound:
    """Counts requests that were sent to the engine and do not run yet, even if the engine has not seen them yet.

    Args:
        max_requests: prompts that may wait; None: any number.
        max_tokens: the same for their tokens.
    """

    def __init__(self, engine: EngineClient, max_requests: int | None, max_tokens: int | None):
        self._engine = engine
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._num_requests = 0
        self._num_tokens = 0

    @property
    def num_requests(self) -> int:
        """Prompts that were sent to the engine and have not ended."""
        return self._num_requests

    def check(self) -> None:
        """Check that a request may be sent. Raises ApiError 429: the queue is full."""
        if self._max_requests is None and self._max_tokens is None:
            return
        stats = self._engine.stats()
        for waiting, limit, what, flag in (
            (self._num_requests - stats.num_running, self._max_requests, "requests", "--max-queued-requests"),
            (self._num_tokens - stats.num_running_prompt_tokens, self._max_tokens, "tokens", "--max-queued-tokens"),
        ):
            if limit is not None and waiting >= limit:
                raise ApiError(
                    429,
                    f"{waiting} {what} wait for the engine already, and {limit} may ({flag}); try again later",
                    code="queue_full",
                    headers={"Retry-After": str(RETRY_S)},
                )

    @contextlib.contextmanager
    def holding(self, requests: Sequence[GenerateRequest]) -> Iterator[None]:
        """Count `requests` for as long as they are in the engine."""
        num_tokens = sum(len(request.prompt_token_ids) for request in requests)
        self._num_requests += len(requests)
        self._num_tokens += num_tokens
        try:
            yield
        finally:
            self._num_requests -= len(requests)
            self._num_tokens -= num_tokens
