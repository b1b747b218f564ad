"""ServerOptions: the options of the HTTP server, beside those of the engine."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from lullm.errors import ConfigError
from lullm.units import MIB

_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")  # the characters that a header may hold
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")

_COUNTS = ("max_connections", "max_body_bytes", "max_request_logprobs", "max_queued_requests", "max_queued_tokens")
UnknownFields = Literal["ignore", "refuse"]
MetricsPrefix = Literal["both", "lullm", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of the server.

    Args:
        host: address to listen on. port: TCP port; 0 lets the system choose one, the ready line names it.
        api_keys: a request must carry one of them as `Authorization: Bearer KEY`; empty: open to all.
        admin_keys: the same for the sleep endpoints, which API keys do not open then; empty: they are as open as the
            rest, and the server listens on a loopback address only.
        allowed_hosts: names that requests without a key may call the server by in `Host`, beside loopback names, IP
            addresses, `host` and the machine's own names; '*' for any.
        allowed_origins: web origins that browsers may call from (CORS); '*' for any; empty: none.
        model_aliases: more names that requests may call the model by. any_model_name: they may call it by any.
        max_connections: connections that are open at a time; one more gets a 503.
        max_body_bytes: longest request body that is read.
        max_request_logprobs: most log-probabilities that the answer to one request may hold, over all its prompts,
            completions and tokens; None: 2**20, and no fewer than one sequence of the model's length may ask for.
        max_queued_requests: prompts that may wait for the engine, beside those it works on; while so many wait, one
            more request gets a 429. None: any number. max_queued_tokens: the same for the tokens of these prompts.
        request_timeout_s: seconds from when a request for text or vectors is handed to the engine until it is ended
            with 504 `request_timeout`; None: it may take any time.
        stream_pause_s: for the engine that is built: seconds between two events of a stream, at least.
        unknown_fields: what becomes of fields that a body has and no endpoint knows; ignored ones are logged, and named
            in the header `X-Lullm-Ignored` of the answer.
        drain_timeout_s: seconds that running requests get to end after a stop signal, before they are aborted.
        page: whether there is a web page at `/`.
        metrics_prefix: whose names `/metrics` uses: lullm's, vLLM's, or both.
        otlp_traces_endpoint: where an OpenTelemetry collector takes traces over HTTP; None: there are none.

    Raises:
        ConfigError: a value is out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    admin_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    model_aliases: tuple[str, ...] = ()
    any_model_name: bool = False
    max_connections: int = 1000
    max_body_bytes: int = 8 * MIB
    max_request_logprobs: int | None = None
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    request_timeout_s: float | None = None
    stream_pause_s: float = 0.02
    unknown_fields: UnknownFields = "ignore"
    drain_timeout_s: float = 30.0
    page: bool = True
    metrics_prefix: MetricsPrefix = "both"
    otlp_traces_endpoint: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be between 0 and 65535, got {self.port}")
        for name, keys in (("an API key", self.api_keys), ("an admin key", self.admin_keys)):
            if not all(map(_KEY.fullmatch, keys)):
                raise ConfigError(f"{name} must be printable ASCII, not empty, with no blanks around it")
        for name in self.allowed_hosts:
            if name != "*" and not _HOST_NAME.fullmatch(name):
                raise ConfigError(f"an allowed host is a name such as llm.example.org, without a port, got {name!r}")
        if not all(self.model_aliases):
            raise ConfigError("a model name must not be empty")
        if not all(self.allowed_origins):
            raise ConfigError("an allowed origin must not be empty")
        if set(self.admin_keys) & set(self.api_keys):
            raise ConfigError("an admin key must not be an API key, too")
        for name in _COUNTS:
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if self.request_timeout_s is not None and not 0 < self.request_timeout_s < float("inf"):
            raise ConfigError(f"request_timeout must be a number of seconds above 0, got {self.request_timeout_s}")
        if not 0 <= self.stream_pause_s <= 10:
            raise ConfigError(f"stream_pause must be between 0 and 10 seconds, got {self.stream_pause_s}")
        for name, choices in (("unknown_fields", UnknownFields), ("metrics_prefix", MetricsPrefix)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(f"{name} must be {' or '.join(get_args(choices))}, got {getattr(self, name)!r}")
        if self.otlp_traces_endpoint is not None and not re.match(r"https?://.", self.otlp_traces_endpoint):
            raise ConfigError(
                "otlp_traces_endpoint must be a URL such as http://127.0.0.1:4318/v1/traces, "
                f"got {self.otlp_traces_endpoint!r}"
            )
        if not 0 <= self.drain_timeout_s < float("inf"):
            raise ConfigError(f"drain_timeout must be a number of seconds of at least 0, got {self.drain_timeout_s}")
