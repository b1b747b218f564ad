"""Listener: the sockets of one server, bound before a model is loaded."""

import contextlib
import errno
import ipaddress
import os
import socket
import ssl
from types import TracebackType
from typing import Self

from lullm.config.engine_option import EngineOptions
from lullm.errors import ConfigError
from lullm.server.listen.tls import tls_context
from lullm.server.listen.unix_socket import bind_unix, remove_unix
from lullm.server.options import ServerOptions

UNIX_SCHEME = "unix:"


class Listener:
    """Bound sockets: one for requests, and perhaps one for the sleep endpoints alone.

    Sockets on ports do not listen before the server serves: a taken port is found early, and clients are refused until
    the model is loaded.

    Raises:
        ConfigError: an address is not available, or the files of TLS cannot be used.
    """

    def __init__(self, options: ServerOptions):
        self.tls: ssl.SSLContext | None = tls_context(options)
        self._uds = options.uds
        with contextlib.ExitStack() as stack:  # bound sockets are closed if the next fails
            if options.uds is None:
                self._main = stack.enter_context(_bind(options.host, options.port, "--port"))
            else:
                self._main = bind_unix(options.uds)
                stack.callback(remove_unix, self._main, options.uds, os.lstat(options.uds).st_ino)
            self._admin: socket.socket | None = None
            if options.admin_port is not None:
                host = options.admin_host or "127.0.0.1"
                self._admin = stack.enter_context(_bind(host, options.admin_port, "--admin-port"))
            self._opened = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def sockets(self) -> list[socket.socket]:
        """All of them."""
        return [self._main, *([] if self._admin is None else [self._admin])]

    @property
    def url(self) -> str:
        """`http://HOST:PORT` or `https://HOST:PORT` with the real port, or `unix:PATH`."""
        return self._url_of(self._main) if self._uds is None else f"{UNIX_SCHEME}{self._uds}"

    @property
    def admin_url(self) -> str | None:
        """The URL of the sleep endpoints; None: they are on the main socket."""
        return None if self._admin is None else self._url_of(self._admin)

    @property
    def admin_port(self) -> int | None:
        """The real port of the sleep endpoints; None: they are on the main socket."""
        return None if self._admin is None else int(self._admin.getsockname()[1])

    def _url_of(self, sock: socket.socket) -> str:
        host, port = sock.getsockname()[:2]
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def check_exposure(self, options: ServerOptions, config: EngineOptions) -> None:
        """Check that the network cannot reach the admin endpoints: they need a key, are unreachable, or do not exist.

        Raises:
            ConfigError: they would be open to the network; or there is a key or a port and no endpoint for it.
        """
        for is_given, flag in ((options.lora_modules, "--lora-modules"), (options.lora_updates, "--lora-updates")):
            if is_given and not config.enable_lora:
                raise ConfigError(f"{flag} needs --enable-lora")
        if options.prompt_adapters and not config.enable_prompt_adapter:
            raise ConfigError("--prompt-adapters needs --enable-prompt-adapter")
        if not config.enable_sleep_mode and not options.lora_updates:
            for given, what in ((options.admin_keys, "an admin key"), (self._admin, "an admin port")):
                if given:
                    raise ConfigError(f"{what} is for the sleep endpoints; they need --enable-sleep-mode")
            return
        sock = self._admin or self._main
        if options.admin_keys or sock.family == socket.AF_UNIX:
            return
        host = sock.getsockname()[0].partition("%")[0]
        if not ipaddress.ip_address(host).is_loopback:
            more = "leave --admin-host" if self._admin else "give the sleep endpoints an --admin-port, or leave --host"
            flag, deed = "--enable-sleep-mode", "put the engine to sleep"
            if not config.enable_sleep_mode:
                flag, deed, more = "--lora-updates", "load files of this machine", more.replace("sleep", "admin")
            raise ConfigError(
                f"{flag} on {host}, which is not a loopback address, would let anybody {deed}; set an --admin-key, or "
                f"{more} at 127.0.0.1"
            )


def _bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket that does not listen yet. Raises ConfigError: the address is not available."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        wrong = flag.replace("port", "host") if error.errno == errno.EADDRNOTAVAIL else flag
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another {wrong}") from None
    return sock
