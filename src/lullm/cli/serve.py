"""`lullm serve`: the OpenAI-compatible server."""

import argparse
import sys
from typing import Any, get_args

from lullm.cli.flag.engine import add_engine_flags, byte_count, engine_config
from lullm.cli.flag.key import ADMIN_KEY_VARIABLE, API_KEY_VARIABLE, gather_keys
from lullm.cli.flag.model import add_model_argument, take_model
from lullm.cli.flag.settings import add_config_flag
from lullm.engine.start.head_start import head_start
from lullm.errors import EngineDeadError
from lullm.server.options import ServerOptions, UnknownFields
from lullm.units import format_bytes

DEFAULTS = ServerOptions()
ENGINE_DEAD = 1
"""Exit code, on which a supervisor starts the server again. A stop by a signal gives 0, a user's mistake 2."""


class _Names(argparse.Action):
    """The first name is the engine's option, the others are the server's."""

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, values: Any, _: Any = None) -> None:
        args.served_model_name, args.model_aliases = values[0], tuple(values[1:])


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The sub-command and its flags."""
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP, to clients of OpenAI, Anthropic, Ollama and llama.cpp",
        usage="lullm serve [MODEL] [FLAGS]",
        description="Serve a model over HTTP: a page at /; OpenAI's and Anthropic's at /v1, Ollama's at "
        "/api, llama.cpp's /completion; /metrics, /health; /docs lists every endpoint and field. With "
        "--enable-sleep-mode also /sleep, /sleep/explain, /wake_up, /is_sleeping, /pause, /resume, /is_paused, "
        "/reset_prefix_cache, /collective_rpc. SIGTERM or Ctrl-C lets running requests end, a second one aborts them.",
    )
    add_model_argument(parser)
    add_config_flag(parser)
    group = parser.add_argument_group("server")
    group.add_argument("--host", default=DEFAULTS.host, help="address to listen on (default: %(default)s)")
    group.add_argument(
        "--port",
        type=int,
        default=DEFAULTS.port,
        metavar="N",
        help="port to listen on; 0: a free one, named in the ready line (default: %(default)s)",
    )
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="requests must carry it as 'Authorization: Bearer KEY'; give it again for more keys; `ps` shows "
        f"it to other users, unlike a file or the variable {API_KEY_VARIABLE} (default: open)",
    )
    group.add_argument(
        "--api-key-file", action="append", default=[], metavar="FILE", help="file with API keys, one a line"
    )
    group.add_argument(
        "--admin-key",
        action="append",
        default=[],
        metavar="KEY",
        help="opens the sleep endpoints, which no API key opens then; needed with --enable-sleep-mode beyond loopback; "
        f"give it again for more keys; also from the variable {ADMIN_KEY_VARIABLE} (default: as open as the rest)",
    )
    group.add_argument(
        "--admin-key-file", action="append", default=[], metavar="FILE", help="file with admin keys, one a line"
    )
    group.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="name by which requests without a key may call the server, '*' for any; may be given again (default: "
        "IP addresses, loopback names, --host and this machine's names)",
    )
    group.add_argument(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web origin that browsers may call from (CORS), '*' for any; may be given again (default: pages of this "
        "machine, without CORS)",
    )
    group.add_argument(
        "--served-model-name",
        action=_Names,
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="names that requests may call the model by; the first stands in answers (default: the model as given)",
    )
    group.add_argument("--any-model-name", action="store_true", help="requests may call the model by any name")
    group.add_argument(
        "--max-connections",
        type=int,
        default=DEFAULTS.max_connections,
        metavar="N",
        help="connections that are open at a time; one more gets a 503 (default: %(default)s)",
    )
    group.add_argument(
        "--max-body-bytes",
        type=byte_count,
        default=DEFAULTS.max_body_bytes,
        metavar="SIZE",
        help=f"longest request body that is read (default: {format_bytes(DEFAULTS.max_body_bytes).replace(' ', '')})",
    )
    group.add_argument(
        "--max-request-logprobs",
        type=int,
        default=DEFAULTS.max_request_logprobs,
        metavar="N",
        help="most log-probabilities that the answer to one request may hold: prompts x completions x tokens x "
        "(logprobs + 1) (default: 1048576, or what one sequence of the model's length may ask for)",
    )
    group.add_argument(
        "--max-queued-requests",
        type=int,
        metavar="N",
        help="prompts that may wait for the engine, beside those it works on; while so many wait, one more request "
        "gets a 429 (default: any number)",
    )
    group.add_argument(
        "--max-queued-tokens", type=int, metavar="N", help="the same for the tokens of these prompts (default: any)"
    )
    group.add_argument(
        "--request-timeout",
        type=float,
        metavar="S",
        help="seconds until a request for text or vectors is ended with 504 (default: it may take any time)",
    )
    group.add_argument(
        "--stream-pause",
        type=float,
        default=DEFAULTS.stream_pause_s,
        metavar="S",
        help="seconds between two events of a stream, at least; tokens drawn meanwhile come together; longer with more "
        "than 64 streams; 0: an event per step (default: %(default)s)",
    )
    group.add_argument(
        "--unknown-fields",
        choices=get_args(UnknownFields),
        default=DEFAULTS.unknown_fields,
        help="fields that no endpoint knows: ignored with a line in the log and the header X-Lullm-Ignored, or refused "
        "with 400 (default: %(default)s)",
    )
    group.add_argument(
        "--drain-timeout",
        type=float,
        default=DEFAULTS.drain_timeout_s,
        metavar="S",
        help="seconds that running requests get to end after a stop signal (default: %(default)s)",
    )
    group.add_argument(
        "--page",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.page,
        help="a web page at /: chat, KV blocks, queues, sleep (default: on)",
    )
    group.add_argument(
        "--metrics-prefix",
        choices=("both", "lullm", "vllm"),
        default=DEFAULTS.metrics_prefix,
        help="whose names /metrics uses; `lullm ps` reads lullm's (default: %(default)s)",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="send a trace of each request to this OpenTelemetry collector over HTTP, such as "
        "http://127.0.0.1:4318/v1/traces; needs lullm[otel] (default: no traces)",
    )
    group.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(default: %(default)s)"
    )
    group.add_argument(
        "--enable-auto-tool-choice", action="store_true", help="vLLM's; models may always call tools here"
    )
    add_engine_flags(parser, without=frozenset({"served_model_name"}))
    parser.set_defaults(run=run, not_engine=frozenset(), model_aliases=())


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises LullmError."""
    take_model(args, args.positional_model)
    config = engine_config(args)
    # Torch and the web stack are loaded here, after the flags are checked; torch after the port is bound, too.
    import asyncio
    import gc

    from lullm.log import log_to_stderr
    from lullm.server.gate.descriptor import raise_descriptor_limit
    from lullm.server.http_server import bind, check_exposure, serve_until_signal
    from lullm.server.tracing import check_tracing

    log_to_stderr(args.log_level)
    # The variable may be there for `lullm sleep`: it is no error for a server that cannot sleep.
    admin_variable = ADMIN_KEY_VARIABLE if config.enable_sleep_mode else ""
    options = ServerOptions(
        host=args.host,
        port=args.port,
        api_keys=gather_keys(args.api_key, args.api_key_file, API_KEY_VARIABLE),
        admin_keys=gather_keys(args.admin_key, args.admin_key_file, admin_variable),
        allowed_hosts=tuple(args.allowed_host),
        allowed_origins=tuple(args.allowed_origin),
        model_aliases=args.model_aliases,
        any_model_name=args.any_model_name,
        max_connections=args.max_connections,
        max_body_bytes=args.max_body_bytes,
        max_request_logprobs=args.max_request_logprobs,
        max_queued_requests=args.max_queued_requests,
        max_queued_tokens=args.max_queued_tokens,
        request_timeout_s=args.request_timeout,
        stream_pause_s=args.stream_pause,
        unknown_fields=args.unknown_fields,
        drain_timeout_s=args.drain_timeout,
        page=args.page,
        metrics_prefix=args.metrics_prefix,
        otlp_traces_endpoint=args.otlp_traces_endpoint,
    )
    raise_descriptor_limit()
    if options.otlp_traces_endpoint is not None:
        check_tracing()
    with bind(options) as sock:
        check_exposure(sock, options, config)
        with head_start(config) as ahead:
            from lullm.engine.async_llm_engine import AsyncLLMEngine

            engine = AsyncLLMEngine(config, ahead, options.stream_pause_s)
        gc.freeze()  # a full round over 280,000 objects that stay would hold up all streams for 0.1 s
        try:
            asyncio.run(serve_until_signal(engine, options, sock, _announce))
        except EngineDeadError as error:
            print(f"lullm: error: {error}", file=sys.stderr)
            return ENGINE_DEAD
    return 0


def _announce(url: str) -> None:
    print(f"lullm is ready on {url}", flush=True)
