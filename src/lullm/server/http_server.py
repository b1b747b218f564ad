"""HttpServer: listening, the ready signal, and an orderly end.

The end begins with a signal, or some seconds after the engine has died. New requests get 503 while running ones may
finish, for at most `drain_timeout_s`; the others are aborted. Then the engine is shut down. The listening socket is
closed last, so that clients get an answer until then.
"""

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Generator
from typing import Any

import uvicorn
from fastapi import FastAPI

from lullm.engine.client import EngineClient
from lullm.errors import ConfigError, EngineDeadError
from lullm.fleet.fleet import Fleet
from lullm.log import get_logger
from lullm.server.app import build_app
from lullm.server.context import House, ServerContext
from lullm.server.gate.connection import BoundedConnection
from lullm.server.gate.descriptor import ExhaustionLog, connection_bound, refusal_bound
from lullm.server.gate.refusal import Refusals
from lullm.server.listen.listener import Listener
from lullm.server.listen.tls import reload_tls
from lullm.server.lora.start import load_modules
from lullm.server.options import ServerOptions
from lullm.server.prefix_cache.folder import load_prefixes, save_prefixes

logger = get_logger(__name__)

ENGINE_SHUTDOWN_S = 10.0  # bounds the abort of running requests; a step in progress has to end first
LAST_ANSWERS_S = 2.0  # for the answers of aborted requests to reach their clients
SLEEP_CHECK_S = 0.25  # how often a drain checks whether the engine sleeps with requests
KEEP_ALIVE_S = 75
"""Seconds of idle connections: longer than clients keep theirs (httpx and openai: 5). Otherwise a client may send a
request while the server closes the connection, and the request is lost.
"""
DEATH_CHECK_S = 0.25  # how often the engine is looked at
DEATH_S = 5.0
"""Seconds from the engine's death to the end: clients get their errors, and a supervisor sees it on /health."""
CLOSING_S = 1  # for connections to close; then those are cut off whose clients do not read, or send half a request
CANCEL_S = 1
"""Seconds until uvicorn cancels what goes on without a connection. For each such request it logs a traceback, which is
why connections are cut off first: a request ends by itself then.
"""


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handling, which ends the process by the signal it caught."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]):
        super().__init__(config)
        self._on_ready = on_ready

    def guard(self, max_connections: int, tls: ssl.SSLContext | None) -> None:
        """Put a `BoundedConnection` in front of uvicorn's protocol, and TLS before both. Call before `serve`."""
        self.config.load()
        self.config.ssl = tls
        protocol, connections = self.config.http_protocol_class, self.server_state.connections
        refusals = Refusals(refusal_bound(max_connections))

        def make(**arguments: Any) -> BoundedConnection:
            return BoundedConnection(lambda: protocol(**arguments), connections, max_connections, refusals)

        vars(self.config)["http_protocol_class"] = make  # uvicorn only calls it

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cut = asyncio.get_running_loop().call_later(CLOSING_S, self._cut_off)
        await super().shutdown(sockets)
        cut.cancel()
        self._cut_off()  # a client that never read keeps its transport open
        await asyncio.sleep(0)

    def _cut_off(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class HttpServer:
    """One engine, or a fleet, behind the sockets of one listener, for the life of one `serve` call."""

    def __init__(self, engine: EngineClient | Fleet, options: ServerOptions, listener: Listener):
        listener.check_exposure(options, engine.config)
        self._engine = engine
        self._options = options
        self._listener = listener
        self._stopping = asyncio.Event()
        self._hurried = asyncio.Event()

    def stop(self) -> None:
        """Begin the end; a second call aborts running requests at once. Call on the loop's thread."""
        (self._hurried if self._stopping.is_set() else self._stopping).set()

    def reload_certificate(self) -> None:
        """Read the certificate's files for later connections; keep the old certificate if the files are wrong."""
        assert self._listener.tls is not None
        try:
            reload_tls(self._listener.tls, self._options)
        except ConfigError as error:
            logger.error("the certificate stays as it was: %s", error)
        else:
            logger.info("the certificate is read anew")

    async def serve(self, on_ready: Callable[[str], None]) -> None:
        """Serve until `stop`, then end the running requests and shut the engine down. `on_ready` gets the URL.

        Raises:
            EngineDeadError: the engine has died; a supervisor should start another process.
            ConfigError: an adapter cannot be loaded; nothing was served.
        """
        listener = self._listener
        app = build_app(self._engine, self._options, listener.admin_port)
        await self._load(app.state.context.house)
        asyncio.get_running_loop().set_exception_handler(ExhaustionLog())
        server = self._uvicorn(app, on_ready)
        if isinstance(self._engine, Fleet):
            self._engine.start()
        serving = asyncio.create_task(server.serve(sockets=listener.sockets))
        stopping = asyncio.create_task(self._stopping.wait())
        dying = asyncio.create_task(self._death())
        try:
            await asyncio.wait({serving, stopping, dying}, return_when=asyncio.FIRST_COMPLETED)
            await self._let_end(app.state.context)
            if not dying.done():
                dying.cancel()  # an engine that has been shut down is not dead
                await self._leave_prefixes()
            await self._shut_down(app.state.context)
        finally:
            stopping.cancel()
            dying.cancel()
            server.should_exit = True
            await serving
            for each in app.state.context.house.models:
                await asyncio.to_thread(each.tracing.close)
        if dying.done() and not dying.cancelled():
            raise dying.result()

    def _uvicorn(self, app: FastAPI, on_ready: Callable[[str], None]) -> "_Uvicorn":
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=CLOSING_S + CANCEL_S,
        )
        server = _Uvicorn(config, self._on_ready(on_ready))
        server.guard(connection_bound(self._options.max_connections), self._listener.tls)
        return server

    async def _load(self, house: House) -> None:
        """Load adapters, and the prefixes that the last server left; shut the engine down if that fails."""
        options = self._options
        try:
            await load_modules(house, options.lora_modules, options.prompt_adapters)
            if options.prefix_cache_folder is not None and not isinstance(self._engine, Fleet):
                await load_prefixes(self._engine, options.prefix_cache_folder)
        except BaseException:
            await self._engine.shutdown(drain=False)
            raise

    def _on_ready(self, on_ready: Callable[[str], None]) -> Callable[[], None]:
        def tell() -> None:
            if self._listener.admin_url is not None:
                logger.info("the sleep endpoints answer on %s alone", self._listener.admin_url)
            on_ready(self._listener.url)

        return tell

    async def _death(self) -> EngineDeadError:
        """Return some seconds after the engine has died, with the cause."""
        while True:
            await asyncio.sleep(DEATH_CHECK_S)
            try:
                self._engine.check_running()
            except EngineDeadError as error:
                logger.error("the engine is dead: %s; the server ends in %g s", error, DEATH_S)
                await asyncio.sleep(DEATH_S)
                return error

    async def _let_end(self, context: ServerContext) -> None:
        """Take no new requests, and wait for the running ones."""
        context.house.draining = True
        logger.info("stopping: running requests have %g s to end", self._options.drain_timeout_s)
        idle = asyncio.create_task(context.house.idle.wait())
        hurried = asyncio.create_task(self._hurried.wait())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.drain_timeout_s
        # Requests that a sleeping engine keeps cannot end: a draining server takes no wake-up call.
        while (left_s := deadline - loop.time()) > 0 and self._goes_on:
            done, _ = await asyncio.wait(
                {idle, hurried}, timeout=min(left_s, SLEEP_CHECK_S), return_when=asyncio.FIRST_COMPLETED
            )
            if done:
                break
        hurried.cancel()
        idle.cancel()

    async def _leave_prefixes(self) -> None:
        """Write the prefix cache to its folder, unless a second signal comes first."""
        folder = self._options.prefix_cache_folder
        if folder is None or isinstance(self._engine, Fleet):
            return
        saving = asyncio.create_task(save_prefixes(self._engine, folder))
        hurried = asyncio.create_task(self._hurried.wait())
        await asyncio.wait({saving, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        saving.cancel()

    @property
    def _goes_on(self) -> bool:
        """Whether running requests can end. A fleet wakes its models for them."""
        return isinstance(self._engine, Fleet) or self._engine.sleep_state == "awake"

    async def _shut_down(self, context: ServerContext) -> None:
        if not context.house.idle.is_set():
            logger.warning("aborting the requests that still run")
        try:
            async with asyncio.timeout(ENGINE_SHUTDOWN_S):
                await self._engine.shutdown(drain=False)
        except TimeoutError:
            logger.error("the engine did not stop within %g s", ENGINE_SHUTDOWN_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_ANSWERS_S):
                await context.house.idle.wait()


async def serve_until_signal(
    engine: EngineClient | Fleet, options: ServerOptions, listener: Listener, on_ready: Callable[[str], None]
) -> None:
    """`HttpServer.serve`, stopped by SIGTERM or SIGINT; with TLS, SIGHUP reloads the certificate.

    For the main thread of a process that owns its signals.
    """
    server = HttpServer(engine, options, listener)
    loop = asyncio.get_running_loop()
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, server.stop)
    if listener.tls is not None:  # otherwise it ends the process, as usual
        signals += (signal.SIGHUP,)
        loop.add_signal_handler(signal.SIGHUP, server.reload_certificate)
    try:
        await server.serve(on_ready)
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
