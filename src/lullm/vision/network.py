"""A picture or a sound fetched from a web server, whose host the operator allows.

A server that fetches whatever address a request names can be made to ask its own network (SSRF). So nothing is fetched
from hosts that are not named; by `ANY_HOST`, only from addresses of the public internet, which are checked where the
connection is made, behind the resolver. Redirects are checked like the first address. Proxies are not used.
"""

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from lullm.config.option.pictures import ANY_HOST
from lullm.errors import InvalidRequestError
from lullm.units import MIB

MAX_BYTES = 64 * MIB
_TIME_LIMIT_S = 20.0
"""For a whole fetch, redirects and all: a caller's thread waits for it."""
_CONNECT_LIMIT_S = 5.0
_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def fetch(url: str, noun: str, allowed_hosts: tuple[str, ...], time_limit_s: float = _TIME_LIMIT_S) -> bytes:
    """What a web server answers, at most MAX_BYTES. Blocks on the network.

    Args:
        noun: what is fetched, for errors.
        allowed_hosts: names of hosts, or ANY_HOST.

    Raises InvalidRequestError: the host is not allowed or does not answer in time, or not with the thing asked for.
    """
    try:
        with _TimeLimit(time_limit_s) as limit:
            for _ in range(_MOST_REDIRECTS + 1):
                body, redirect = _answer(_checked(url, noun, allowed_hosts), noun, _names(allowed_hosts, url), limit)
                if redirect is None:
                    return body
                url = urljoin(url, redirect)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, InvalidRequestError):
            raise
        reason = f"no answer within {time_limit_s:g} s" if limit.is_over else str(error) or type(error).__name__
        raise InvalidRequestError(f"a {noun} cannot be fetched from {_host_of(url)!r}: {reason[:200]}") from None
    raise InvalidRequestError(f"a {noun} is redirected more than {_MOST_REDIRECTS} times")


class _TimeLimit:
    """Ends the connections of a fetch when its time is over. A timeout of a socket is for each of its reads alone, and
    a server that sends a byte every second would hold its caller for hours."""

    def __init__(self, seconds: float) -> None:
        self._lock = threading.Lock()
        self._open: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self.is_over = False

    def __enter__(self) -> "_TimeLimit":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @contextmanager
    def over(self, connection: socket.socket) -> Iterator[None]:
        """Within, the connection is the open one. Raises TimeoutError: there is no time left."""
        with self._lock:
            if self.is_over:
                raise TimeoutError
            self._open = connection
        try:
            yield
        finally:
            with self._lock:
                self._open = None

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            if self._open is not None:
                with contextlib.suppress(OSError):  # the other side was quicker
                    self._open.shutdown(socket.SHUT_RDWR)


def _host_of(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".")


def _names(allowed_hosts: tuple[str, ...], url: str) -> bool:
    return _host_of(url) in {host.lower().rstrip(".") for host in allowed_hosts}


def _checked(url: str, noun: str, allowed_hosts: tuple[str, ...]) -> SplitResult:
    """The parts of an address that may be fetched. Raises InvalidRequestError, ValueError: it may not."""
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise InvalidRequestError(f"a {noun} is fetched from http:// and https:// URLs, not from {url[:80]!r}")
    if parts.username is not None or parts.password is not None:
        raise InvalidRequestError(f"the URL of a {noun} may hold no user and no password")
    if ANY_HOST not in allowed_hosts and not _names(allowed_hosts, url):
        raise InvalidRequestError(
            f"{noun}s are not fetched from {_host_of(url)[:200]!r}, which allowed_media_domains does not name"
        )
    return parts


def _answer(parts: SplitResult, noun: str, is_named: bool, limit: _TimeLimit) -> tuple[bytes, str | None]:
    """(the body, None), or (nothing, where it is instead)."""
    assert parts.hostname is not None
    is_secure = parts.scheme.lower() == "https"
    raw = _connected(parts.hostname, parts.port or (443 if is_secure else 80), noun, is_named)
    with raw, limit.over(raw):
        connection = http.client.HTTPConnection(parts.hostname, parts.port)
        connection.sock = raw
        if is_secure:
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(parts.hostname, parts.port, context=context)
            # The address stays as it was checked: left to itself, the connection would ask the resolver once more.
            connection.sock = context.wrap_socket(raw, server_hostname=parts.hostname)
        with connection.sock:
            path = quote(parts.path or "/", safe="/%:;,=&+!$'()*~@[]") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"User-Agent": "lullm", "Accept": "*/*", "Connection": "close"})
            with connection.getresponse() as response:
                if response.status in _REDIRECTS and (place := response.headers.get("Location")):
                    return b"", place
                if response.status != 200:
                    raise InvalidRequestError(
                        f"a {noun} cannot be fetched: {parts.hostname!r} answers {response.status}"
                    )
                body = response.read(MAX_BYTES + 1)
                if limit.is_over:  # what was read until then looks like a whole body if its length was not said
                    raise TimeoutError
    if len(body) > MAX_BYTES:
        raise InvalidRequestError(f"a {noun} at {parts.hostname!r} is above {MAX_BYTES} bytes")
    return body, None


def _connected(host: str, port: int, noun: str, is_named: bool) -> socket.socket:
    """A connection to the first address of a host that takes one. Raises InvalidRequestError, OSError."""
    error: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if not is_named and not _is_public(str(address[0])):
            raise InvalidRequestError(
                f"a {noun} is not fetched from {host[:200]!r}, an address of a private network; allowed_media_domains "
                "may name that host"
            )
        connection = socket.socket(family, kind, protocol)
        connection.settimeout(_CONNECT_LIMIT_S)
        try:
            connection.connect(address)
        except OSError as refused:
            connection.close()
            error = refused
        else:
            return connection
    raise error or OSError("it has no address")


def _is_public(text: str) -> bool:
    """Whether an address is of the public internet, itself or as the IPv4 address that it stands for."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if address in _NAT64:
            inner = ipaddress.IPv4Address(address.packed[-4:])
        if inner is not None:
            return _is_public(str(inner))
    return address.is_global and not address.is_multicast
