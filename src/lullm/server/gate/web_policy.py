"""WebPolicy: which web pages may call a server that has no key.

A page in a local browser reaches loopback addresses. Two headers that only the browser writes identify such calls:
- `Host`: a page whose own name was rebound to this machine's address (DNS rebinding) still sends its own name. It could
  read every answer. An IP address in `Host` is safe, because an address cannot be rebound.
- `Origin`: any page can send a simple POST; the browser hides only the answer from it.
"""

import functools
import ipaddress
import re
import socket
from collections.abc import Collection

from starlette.datastructures import Headers

from lullm.server.error import ApiError

ANY = "*"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]*)?")
_ORIGIN = re.compile(r"https?://(.+)")


def host_name(text: str) -> str | None:
    """The name or address in a `Host` header, in lower case without port and brackets; None if it is malformed."""
    match = _HOST.fullmatch(text)
    return (match[1] or match[2]).lower().removesuffix(".") if match else None


def machine_names() -> frozenset[str]:
    """The names by which the machine calls itself: of the kernel, its first label, and that in mDNS."""
    name = socket.gethostname().lower().removesuffix(".")
    label = name.partition(".")[0]
    return frozenset({name, label, f"{label}.local"}) - {"", ".local"}


class WebPolicy:
    """Refuses the requests of foreign web pages. Programs other than browsers pass: they send no `Origin`.

    Args:
        host: the address or name of the option `host`.
        allowed_hosts: further names for `Host`; '*' for any.
        allowed_origins: further origins; '*' for any.
    """

    def __init__(self, host: str, allowed_hosts: Collection[str], allowed_origins: Collection[str]):
        self._names = {host.lower(), *machine_names(), *(name.lower() for name in allowed_hosts)}
        self._allows_any_host = ANY in allowed_hosts
        self._origins = frozenset(allowed_origins)

    def check(self, headers: Headers, has_name: bool = True) -> None:
        """Check both headers. Raises ApiError 403 otherwise.

        Args:
            has_name: the request came to an address. No browser reaches a unix socket by any name.
        """
        if has_name:
            self._check_host(headers)
        self.check_origin(headers)

    def check_origin(self, headers: Headers) -> None:
        """Check that no foreign page asks. Raises ApiError 403 otherwise."""
        origin = headers.get("origin")
        if origin is None or origin in self._origins or ANY in self._origins:
            return
        match = _ORIGIN.fullmatch(origin)
        name = host_name(match[1]) if match else None
        # The port is not compared: another local program's page is as local as the program.
        if name is None or not (name == host_name(headers.get("host", "")) or self._is_own(name)):
            raise ApiError(
                403,
                f"the origin {origin!r} may not call this server without a key; "
                "start it with --allowed-origin for this origin",
                code="foreign_origin",
            )

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host")
        if host is None or self._allows_any_host:  # without Host: HTTP/1.0, which no browser speaks
            return
        name = host_name(host)
        if name is None or not (_is_address(name) or self._is_own(name)):
            raise ApiError(
                403,
                f"the Host {host!r} is not a name of this server; start it with --allowed-host for this name, "
                "or with an --api-key",
                code="foreign_host",
            )

    def _is_own(self, name: str) -> bool:
        if name in self._names or name == "localhost" or name.endswith(".localhost"):
            return True
        return _is_address(name) and ipaddress.ip_address(name).is_loopback


@functools.lru_cache(maxsize=64)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
