"""ServerOptions: the options of the HTTP server, beside those of the engine."""

import re
from dataclasses import dataclass
from typing import Literal

from lullm.config.lora.module import parse_module
from lullm.config.option.option import described, option, options_of
from lullm.errors import ConfigError
from lullm.units import MIB

_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")  # the characters that a header may hold
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")

UnknownFields = Literal["ignore", "refuse"]
MetricsPrefix = Literal["both", "lullm", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of the server. Raises ConfigError: a value is out of range, or two of them contradict each other."""

    host: str = option("127.0.0.1", "address to listen on", "listening", value_name="HOST")
    port: int = option(
        8000,
        "port to listen on; 0: a free one, named in the ready line",
        "listening",
        least=0,
        most=65535,
    )
    uds: str | None = option(
        None,
        "listen on a unix socket in this file (mode 0600), not on a port; removed when the server ends (default: "
        "--host and --port)",
        "listening",
        value_name="PATH",
    )
    admin_port: int | None = option(
        None,
        "the sleep endpoints answer only on this port; 0: a free one, named in the log (default: on the other one)",
        "listening",
        least=0,
        most=65535,
    )
    admin_host: str | None = option(
        None, "address of --admin-port (default: 127.0.0.1)", "listening", value_name="HOST"
    )
    ssl_certfile: str | None = option(
        None,
        "listen with TLS; PEM file of the certificate and its chain (default: HTTP)",
        "listening",
        value_name="FILE",
    )
    ssl_keyfile: str | None = option(
        None, "PEM file of its private key (default: --ssl-certfile)", "listening", value_name="FILE"
    )
    ssl_ca_certs: str | None = option(
        None,
        "PEM file of the authorities whose client certificates are accepted (default: clients need none)",
        "listening",
        value_name="FILE",
    )
    ssl_cert_reqs: int = option(
        0, "1: a client may show a certificate, 2: it must; needs --ssl-ca-certs", "listening", least=0, most=2
    )
    max_connections: int = option(1000, "open connections at a time; one more gets a 503", "listening", least=1)
    drain_timeout_s: float = option(
        30.0,
        "seconds for running requests to finish after a stop signal, before they are aborted",
        "listening",
        flag="drain-timeout",
        least=0,
        below=float("inf"),
        unit="seconds",
    )

    api_keys: tuple[str, ...] = option(
        (),
        "key that requests must send as 'Authorization: Bearer KEY'; repeat it for more keys; other users see it in "
        "`ps`, unlike a file or the variable LULLM_API_KEY (default: open)",
        "access",
        flag="api-key",
        value_name="KEY",
    )
    admin_keys: tuple[str, ...] = option(
        (),
        "key for the sleep endpoints, which then refuse API keys; needed if --enable-sleep-mode listens beyond "
        "loopback; repeat it for more keys; also from the variable LULLM_ADMIN_KEY (default: as open as the rest)",
        "access",
        flag="admin-key",
        value_name="KEY",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "name that requests without a key may have in `Host`, '*' for any; may be repeated (default: "
        "IP addresses, loopback names, --host and this machine's names)",
        "access",
        flag="allowed-host",
        value_name="NAME",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "web origin that browsers may call from (CORS), '*' for any; may be repeated (default: pages of this "
        "machine, without CORS)",
        "access",
        flag="allowed-origin",
        value_name="ORIGIN",
    )

    model_aliases: tuple[str, ...] = option((), "more names for the model", "requests", flag="")
    lora_modules: tuple[str, ...] = option(
        (),
        "LoRA adapters as NAME=PATH, which requests call by their names in place of the model's; needs --enable-lora",
        "requests",
        flag="",
    )
    prompt_adapters: tuple[str, ...] = option(
        (),
        "prompt adapters as NAME=PATH, which requests call by their names in place of the model's; needs "
        "--enable-prompt-adapter",
        "requests",
        flag="",
    )
    lora_updates: bool = option(
        False,
        "endpoints that load adapters from folders of this machine and unload them; needs --enable-lora, and the admin "
        "key, as the sleep endpoints do",
        "access",
    )
    any_model_name: bool = option(False, "accept every model name in requests", "requests")
    max_body_bytes: int = option(8 * MIB, "longest request body", "requests", least=1, unit="bytes")
    max_request_logprobs: int | None = option(
        None,
        "most log-probabilities in the answer to one request: prompts x completions x tokens x (logprobs + "
        "1) (default: 1048576, or what one sequence of the model's length may ask for)",
        "requests",
        least=1,
    )
    max_queued_requests: int | None = option(
        None,
        "prompts that may wait for the engine, besides those it computes; one more request gets a 429 "
        "(default: any number)",
        "requests",
        least=1,
    )
    max_queued_tokens: int | None = option(
        None, "the same for the tokens of these prompts (default: any)", "requests", least=1, unit="tokens"
    )
    request_timeout_s: float | None = option(
        None,
        "seconds in the engine after which a request for text or vectors ends with 504 (default: no limit)",
        "requests",
        flag="request-timeout",
        above=0,
        below=float("inf"),
        unit="seconds",
    )
    response_store: int | None = option(
        None,
        "memory for responses that /v1/responses stores, for previous_response_id and background; the oldest make room "
        "for new ones (default: none are stored)",
        "requests",
        least=1,
        unit="bytes",
    )
    prefix_cache_folder: str | None = option(
        None,
        "keep cached prefixes of prompts from one server to the next: read from this folder at the start, written to "
        "it after a stop signal; for one model, with the same weights and options (default: they end with the process)",
        "requests",
        value_name="FOLDER",
    )
    stream_pause_s: float = option(
        0.02,
        "least seconds between two events of a stream, which joins the tokens drawn meanwhile; longer with more than "
        "64 streams; 0: an event per step",
        "requests",
        flag="stream-pause",
        least=0,
        most=10,
        unit="seconds",
    )
    engine_process: bool = option(
        False,
        "run the engine in its own process; this one tokenizes, renders templates and speaks HTTP",
        "requests",
    )
    unknown_fields: UnknownFields = option(
        "ignore",
        "fields that no endpoint knows: ignored with a line in the log and the header X-Lullm-Ignored, or refused with "
        "400",
        "requests",
    )

    enable_force_include_usage: bool = option(
        False,
        "streams of completions and chats end with their usage, whether stream_options ask for it or not",
        "requests",
    )
    enable_request_id_headers: bool = option(
        False,
        "every answer has the header X-Request-Id, also part of its id: the client's, or a random one; without this "
        "flag only the client's is returned",
        "requests",
    )

    page: bool = option(True, "a web page at /: chat, KV blocks, queues, sleep", "monitoring")
    metrics_prefix: MetricsPrefix = option("both", "whose names /metrics uses; `lullm ps` reads lullm's", "monitoring")
    otlp_traces_endpoint: str | None = option(
        None,
        "send a trace of each request to this OpenTelemetry collector over HTTP, such as "
        "http://127.0.0.1:4318/v1/traces; needs lullm[otel] (default: no traces)",
        "monitoring",
        value_name="URL",
    )
    enable_log_requests: bool = option(
        False, "also log the prompt and the parameters of each request; prompts are people's own words", "monitoring"
    )
    max_log_len: int | None = option(
        None,
        "characters, or token ids, of a prompt in the log; needs --enable-log-requests (default: all)",
        "monitoring",
        least=1,
    )

    def __post_init__(self) -> None:
        for each in options_of(ServerOptions):
            each.check(getattr(self, each.name))
        self._check_access()
        self._check_listening()
        if not all(self.model_aliases):
            raise ConfigError("a model name must not be empty")
        for text in self.lora_modules:
            parse_module(text)
        for text in self.prompt_adapters:
            parse_module(text, "prompt_adapters")
        if self.otlp_traces_endpoint is not None and not re.match(r"https?://.", self.otlp_traces_endpoint):
            raise ConfigError(
                "otlp_traces_endpoint must be a URL such as http://127.0.0.1:4318/v1/traces, "
                f"got {self.otlp_traces_endpoint!r}"
            )
        if self.max_log_len is not None and not self.enable_log_requests:
            raise ConfigError("max_log_len cuts logged prompts; it needs enable_log_requests")

    def _check_access(self) -> None:
        for name, keys in (("an API key", self.api_keys), ("an admin key", self.admin_keys)):
            if not all(map(_KEY.fullmatch, keys)):
                raise ConfigError(f"{name} must be printable ASCII, not empty, with no blanks around it")
        if set(self.admin_keys) & set(self.api_keys):
            raise ConfigError("an admin key must not be an API key, too")
        for name in self.allowed_hosts:
            if name != "*" and not _HOST_NAME.fullmatch(name):
                raise ConfigError(f"an allowed host is a name such as llm.example.org, without a port, got {name!r}")
        if not all(self.allowed_origins):
            raise ConfigError("an allowed origin must not be empty")

    def _check_listening(self) -> None:
        is_elsewhere = (self.host, self.port) != ("127.0.0.1", 8000)
        if self.uds is not None and is_elsewhere:
            raise ConfigError("uds listens in a file, not on a port; leave out --host and --port, or --uds")
        if self.uds is not None and self.ssl_certfile is not None:
            raise ConfigError("uds does not leave this machine and takes no TLS; leave out ssl_certfile, or uds")
        if self.admin_host is not None and self.admin_port is None:
            raise ConfigError("admin_host is the address of admin_port; give both")
        if self.admin_port == self.port != 0 and self.uds is None:
            raise ConfigError(f"admin_port must be another port than the server's, got {self.admin_port} for both")
        if self.ssl_certfile is None:
            for name in ("ssl_keyfile", "ssl_ca_certs"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"{name} needs ssl_certfile")
        if self.ssl_cert_reqs and self.ssl_ca_certs is None:
            raise ConfigError("ssl_cert_reqs needs ssl_ca_certs: without it no client's certificate can be checked")
        if self.ssl_ca_certs is not None and not self.ssl_cert_reqs:
            raise ConfigError("ssl_ca_certs checks nothing with ssl_cert_reqs 0; give 1 (may show one) or 2 (must)")


ServerOptions.__doc__ = f"{ServerOptions.__doc__}\n\n{described(ServerOptions)}\n"
