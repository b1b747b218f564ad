"""UnixHandler: HTTP over a unix socket, for `urllib`."""

import http.client
import socket
import urllib.request
from typing import Any

UNIX_SCHEME = "unix:"


class UnixHandler(urllib.request.HTTPHandler):
    """Opens every http URL at the socket in the file `path`."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        path = self._path

        class Connection(http.client.HTTPConnection):
            def connect(self) -> None:
                self.sock: Any = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self.sock.settimeout(self.timeout)
                self.sock.connect(path)

        return self.do_open(Connection, req)
