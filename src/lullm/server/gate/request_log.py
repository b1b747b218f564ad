"""The log of requests: a line at the end of each, and prompts only if an option asks for them."""

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.types import Scope

from lullm.log import get_logger
from lullm.server.options import ServerOptions
from lullm.types.outputs import RequestMetrics
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams

logger = get_logger(__name__)

RECORD = "lullm.record"
"""Key of an ASGI scope: the request's `RequestRecord`."""
_MAX_PATH = 200


@dataclass(slots=True)
class RequestRecord:
    """The facts of one HTTP request for its line in the log.

    Attributes:
        id: of the answer; None: there is none.
        status: of HTTP; None: no answer was sent.
        usage: returns the tokens of the answer so far; None as a number: not known.
        queue_s, first_token_s: from arrival, the slowest prompt's.
        ending: why the answer ended early.
    """

    id: str | None = None
    status: int | None = None
    usage: Callable[[], Mapping[str, Any]] | None = None
    queue_s: float | None = None
    first_token_s: float | None = None
    ending: str | None = None
    _began: float = field(default_factory=time.monotonic)

    def observe(self, metrics: RequestMetrics | None) -> None:
        """A prompt has its last output."""
        if metrics is None:
            return
        for name, at in (("queue_s", metrics.first_scheduled_time), ("first_token_s", metrics.first_token_time)):
            if at is not None:
                setattr(self, name, max(getattr(self, name) or 0.0, at - metrics.arrival_time))

    def log(self, scope: Scope) -> None:
        """Write the line. GET requests are logged at the level 'debug': scrapers send them every few seconds."""
        level = logging.DEBUG if scope["method"] in ("GET", "HEAD") else logging.INFO
        if logger.isEnabledFor(level):
            logger.log(level, "%s", self.line(scope))

    def line(self, scope: Scope) -> str:
        """`chatcmpl-7 127.0.0.1 POST /v1/chat/completions 200: 12 + 64 tokens, 0.01 s queued, ..., 1.23 s in all`."""
        client = scope.get("client")
        where = client[0] if client else "local"
        path = quote(scope["path"], safe="/")[:_MAX_PATH]  # a path may have line ends in it
        facts = []
        if self.usage is not None:
            usage = self.usage()
            counts = [usage["prompt_tokens"]] + [usage[name] for name in ("completion_tokens",) if name in usage]
            facts.append(f"{' + '.join('?' if count is None else str(count) for count in counts)} tokens")
        if self.queue_s is not None:
            facts.append(f"{self.queue_s:.3f} s queued")
        if self.first_token_s is not None:
            facts.append(f"first token after {self.first_token_s:.3f} s")
        facts += [f"{time.monotonic() - self._began:.3f} s in all", *([self.ending] if self.ending else [])]
        return f"{self.id or '-'} {where} {scope['method']} {path} {self.status or '-'}: {', '.join(facts)}"


def begun(request: Request, answer_id: str, usage: Callable[[], Mapping[str, Any]]) -> RequestRecord:
    """The record of a request whose answer begins."""
    record: RequestRecord = request.scope[RECORD]
    record.id, record.usage = answer_id, usage
    return record


def log_prompts(requests: list[GenerateRequest], options: ServerOptions) -> None:
    """Log each prompt, and the parameters that are not defaults, if the option asks for it."""
    if not options.enable_log_requests or not logger.isEnabledFor(logging.INFO):
        return
    for request in requests:
        prompt = request.prompt_token_ids if request.prompt is None else request.prompt
        shown = prompt[: options.max_log_len]
        cut = (
            "" if len(shown) == len(prompt) else f" ... ({len(prompt)} {'ids' if request.prompt is None else 'chars'})"
        )
        logger.info("%s asks: %r%s%s", request.request_id, shown, cut, _given(request.params))


_DEFAULTS = SamplingParams()


def _given(params: SamplingParams) -> str:
    pairs = ((each.name, getattr(params, each.name)) for each in dataclasses.fields(params) if each.init)
    return "".join(f", {name}={value!r}" for name, value in pairs if value != getattr(_DEFAULTS, name))
