"""`lullm serve`: the OpenAI-compatible server."""

import argparse
import sys
from typing import Any

from lullm.cli.flag.engine import add_engine_flags, add_option_flags, engine_config
from lullm.cli.flag.key import ADMIN_KEY_VARIABLE, API_KEY_VARIABLE, gather_keys
from lullm.cli.flag.model import add_model_argument, take_model
from lullm.cli.flag.settings import NAMED, add_config_flag
from lullm.cli.flag.vllm import add_vllm_flags
from lullm.cli.fleet import fleet_options, model_specs, named_models
from lullm.cli.parser import WORDS
from lullm.config.engine import EngineConfig
from lullm.config.option.option import options_of
from lullm.config.option.vllm import VLLM_SERVER_OPTIONS
from lullm.errors import ConfigError, EngineDeadError, HibernationError
from lullm.fleet.options import FleetOptions
from lullm.server.options import ServerOptions

EXAMPLES = """

  lullm serve Qwen/Qwen3-0.6B                             one model
  lullm serve small=demo big=MODEL --memory-budget 8GiB   two that take turns within 8 GiB
  lullm serve --models-config fleet.yaml                  several, each with flags of its own"""
ENGINE_DEAD = 1
"""Exit code that makes a supervisor restart the server. A stop by a signal gives 0, a user's mistake 2."""


class _Names(argparse.Action):
    """The first name is the engine's option, the others are the server's."""

    def __call__(self, parser: argparse.ArgumentParser, args: argparse.Namespace, values: Any, _: Any = None) -> None:
        args.served_model_name, args.model_aliases = values[0], tuple(values[1:])


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm serve`."""
    parser.usage = "lullm serve [MODEL ...] [FLAGS]"
    parser.description = (
        "Serve a model, or several within one budget of memory, over HTTP: a web page at /, the APIs of OpenAI and "
        "Anthropic at /v1, Ollama's at /api, llama.cpp's at /completion, and /metrics and /health. /docs lists every "
        "endpoint and field. "
        "--enable-sleep-mode adds /sleep, /sleep/explain, /wake_up, /is_sleeping, /pause, /resume, /is_paused, "
        "/reset_prefix_cache and /collective_rpc, --lora-updates /v1/load_lora_adapter and /v1/unload_lora_adapter. "
        "After SIGTERM or Ctrl-C running requests finish; a second one aborts them." + EXAMPLES
    )
    add_model_argument(parser)
    parser.add_argument(
        WORDS, nargs="*", metavar="MODEL", help="more models, which share one --memory-budget; NAME=MODEL names one"
    )
    add_config_flag(parser)
    groups = add_option_flags(parser, ServerOptions)
    add_option_flags(parser, FleetOptions)
    for kind, what in (("api", "API"), ("admin", "admin")):
        groups["access"].add_argument(
            f"--{kind}-key-file", action="append", default=[], metavar="FILE", help=f"file with {what} keys, one a line"
        )
    _add_name_flags(groups["requests"])
    groups["monitoring"].add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(default: %(default)s)"
    )
    add_engine_flags(parser, without=frozenset({"served_model_name"}))
    add_vllm_flags(parser, VLLM_SERVER_OPTIONS)
    parser.set_defaults(run=run, not_engine=frozenset(), model_aliases=())


def _add_name_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags for the names that requests may call a model or an adapter by."""
    group.add_argument(
        "--served-model-name",
        action=_Names,
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="names that requests may call the model by; the first stands in answers (default: the model as given)",
    )
    group.add_argument(
        "--lora-modules",
        nargs="+",
        action="extend",
        default=argparse.SUPPRESS,
        metavar=NAMED,
        help="LoRA adapters (folders in PEFT's form) that requests call by these names in place of the model's; needs "
        "--enable-lora. Of several models, one is named by vLLM's JSON: "
        '\'{"name": NAME, "path": PATH, "base_model_name": MODEL}\'',
    )
    group.add_argument(
        "--prompt-adapters",
        nargs="+",
        action="extend",
        default=argparse.SUPPRESS,
        metavar=NAMED,
        help="prompt adapters (folders in PEFT's form) that requests call by these names in place of the model's; "
        "needs --enable-prompt-adapter. Of several models, one is named as for --lora-modules",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises LullmError."""
    fleet = fleet_options(args)
    if fleet is None:
        take_model(args, next(iter(named_models(args)), None))
        config = engine_config(args)
    else:
        specs = model_specs(args, fleet)
    # Torch and the web stack are loaded here, after the flags are checked; torch after the port is bound, too.
    import asyncio

    from lullm.engine.client import EngineClient
    from lullm.engine.factory import start_client
    from lullm.fleet.fleet import Fleet
    from lullm.log import log_to_stderr
    from lullm.server.gate.descriptor import raise_descriptor_limit
    from lullm.server.http_server import serve_until_signal
    from lullm.server.listen.listener import Listener
    from lullm.server.tracing import check_tracing

    log_to_stderr(args.log_level)
    can_sleep = getattr(args, "enable_sleep_mode", False)
    options = _server_options(args, can_sleep)
    raise_descriptor_limit()
    if options.otlp_traces_endpoint is not None:
        check_tracing()
    with Listener(options) as listener:
        served: EngineClient | Fleet
        if fleet is None:
            listener.check_exposure(options, config)
            _check_prefix_folder(options, config)
            served = start_client(config, options.stream_pause_s, options.engine_process)
        else:
            if options.prefix_cache_folder is not None:
                raise ConfigError("--prefix-cache-folder is for a server of one model; each has a cache of its own")
            served = Fleet(specs, fleet, options.stream_pause_s, options.engine_process, can_sleep)
        try:
            asyncio.run(serve_until_signal(served, options, listener, _announce))
        except EngineDeadError as error:
            print(f"lullm: error: {error}", file=sys.stderr)
            return ENGINE_DEAD
    return 0


def _check_prefix_folder(options: ServerOptions, config: EngineConfig) -> None:
    """Check before the engine starts that its prefix cache can be kept. Raises ConfigError."""
    from lullm.engine.hibernation.folder import check_place
    from lullm.engine.hibernation.identity import UNTRIED_BACKENDS

    if options.prefix_cache_folder is None:
        return
    if not config.enable_prefix_caching:
        raise ConfigError("--prefix-cache-folder keeps the prefix cache, which --no-enable-prefix-caching turns off")
    if config.data_parallel_size > 1:
        raise ConfigError("--prefix-cache-folder is of one engine, and --data-parallel-size makes several")
    if config.distributed_executor_backend in UNTRIED_BACKENDS:
        raise ConfigError(f"--prefix-cache-folder is not there for {config.distributed_executor_backend!r} workers")
    try:
        check_place(options.prefix_cache_folder)
    except HibernationError as error:
        raise ConfigError(f"--prefix-cache-folder: {error}") from None


def _server_options(args: argparse.Namespace, can_sleep: bool) -> ServerOptions:
    """The options of the given flags, and all keys. Raises ConfigError."""
    names = {each.name for each in options_of(ServerOptions)}
    given = {name: value for name, value in vars(args).items() if name in names}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    # The variable may be set for `lullm sleep`, so it is no error for a server that cannot sleep.
    admin_variable = ADMIN_KEY_VARIABLE if can_sleep else ""
    keys = {
        "api_keys": gather_keys(given.get("api_keys", ()), args.api_key_file, API_KEY_VARIABLE),
        "admin_keys": gather_keys(given.get("admin_keys", ()), args.admin_key_file, admin_variable),
    }
    return ServerOptions(**given | keys)


def _announce(url: str) -> None:
    print(f"lullm is ready on {url}", flush=True)
