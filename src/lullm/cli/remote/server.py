"""RemoteServer: the commands' client for a running `lullm serve`. Each of its errors is one line."""

import argparse
import http
import http.client
import json
import os
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterator
from typing import Any

from lullm.errors import ConfigError, InvalidRequestError, LullmError

DEFAULT_URL = "http://127.0.0.1:8000"
_UNIX_SCHEME = "unix:"
_JSON = "application/json"
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")  # of OpenSSL, by its version


def add_server_flags(parser: argparse.ArgumentParser, key_flag: str, key_help: str, *variables: str) -> None:
    """Add `--url`, and `key_flag` for the command's key; its default is the first of the environment variables."""
    parser.add_argument(
        "--url", default=DEFAULT_URL, help="where the server listens, or unix:PATH for its --uds (default: %(default)s)"
    )
    default = key_of_environment(*variables)
    text = f"{key_help} (default: the environment's {' or '.join(variables)})"
    parser.add_argument(key_flag, dest="key", metavar="KEY", default=default, help=text)


def key_of_environment(*variables: str) -> str | None:
    """The first key in these environment variables."""
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)


def _is_server_url(url: str) -> bool:
    """Whether a URL names a server: http, https or a unix socket's path."""
    if url.startswith(_UNIX_SCHEME):
        return url != _UNIX_SCHEME
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


class RemoteServer:
    """One server by its URL; every call blocks until it answers.

    Args:
        key: sent as `Authorization: Bearer KEY`.

    Raises:
        ConfigError: `url` is not a server's URL, or the key does not fit into a header.
        InvalidRequestError: from the calls: the server refuses the body (400).
        LullmError: from the calls: nothing listens, the answer is not a lullm server's, or it reports an error.
    """

    def __init__(self, url: str, key: str | None):
        if not _is_server_url(url):
            raise ConfigError(f"{url!r} is not a URL like {DEFAULT_URL} or unix:/run/lullm.sock")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError("a key consists of printable ASCII characters")
        self.url = url.rstrip("/").removesuffix("/v1")  # as OpenAI's clients name a server
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # No proxy: proxies are for the web, and these commands' server is local.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        self._base = self.url
        if self.url.startswith(_UNIX_SCHEME):
            handlers.append(_UnixHandler(self.url.removeprefix(_UNIX_SCHEME)))
            self._base = "http://localhost"
        self._opener = urllib.request.build_opener(*handlers)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer to a JSON body. Blocks until the server answers."""
        return self._parse(self._send(path, json.dumps(body).encode(), None))

    def get_json(self, path: str) -> dict[str, Any]:
        """The JSON answer to a query. Blocks until the server answers."""
        return self._parse(self._send(path, None, None))

    def get(self, path: str, timeout_s: float) -> str:
        """The answer as text."""
        return self._send(path, None, timeout_s).decode(errors="replace")

    def post_form(self, path: str, kind: str, body: bytes) -> str:
        """The answer, as text, to a body of another content type. Blocks until the server answers."""
        return self._send(path, body, None, kind).decode(errors="replace")

    def stream(self, path: str, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """The events of a streamed answer to a JSON body. Closing the iterator closes the connection."""
        with self._open(path, json.dumps(body).encode(), None) as response:
            for line in self._lines(path, response):
                data = line.removeprefix(b"data:").strip()
                if data == line.strip() or data == b"[DONE]":  # a comment, an event's name, or the end
                    continue
                event = self._parse(data)
                if "error" in event:
                    raise LullmError(f"the server on {self.url} says: {_message(event) or event['error']}")
                yield event

    def _lines(self, path: str, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            yield from response
        except (http.client.HTTPException, OSError) as error:
            raise LullmError(f"the answer from {self.url}{path} breaks off: {error}") from None

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._stranger()
        return answer

    def _send(self, path: str, data: bytes | None, timeout_s: float | None, kind: str = _JSON) -> bytes:
        with self._open(path, data, timeout_s, kind) as response:
            return b"".join(self._lines(path, response))

    def _open(
        self, path: str, data: bytes | None, timeout_s: float | None, kind: str = _JSON
    ) -> http.client.HTTPResponse:
        headers = self._headers | ({} if data is None else {"Content-Type": kind})
        request = urllib.request.Request(self._base + path, data, headers)
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=timeout_s)
            return response
        except urllib.error.HTTPError as error:
            with error:
                message = self._explain(path, error.code, error.read())
            if error.code == http.HTTPStatus.BAD_REQUEST:
                raise InvalidRequestError(message) from None
            raise LullmError(message) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError, UnicodeError) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, ConnectionRefusedError | FileNotFoundError):
                raise LullmError(f"nothing listens on {self.url}; is `lullm serve` running there?") from None
            if isinstance(reason, ssl.SSLCertVerificationError):
                reason = f"{reason.verify_message}; the variable SSL_CERT_FILE names a file of authorities to trust"
            elif isinstance(reason, ssl.SSLError) and reason.reason in _NOT_TLS:
                reason = f"it speaks no TLS; is its URL {self.url.replace('https', 'http', 1)}?"
            elif self.url.startswith("http:") and isinstance(reason, http.client.HTTPException | ConnectionError):
                reason = f"{reason}; if it speaks TLS, its URL is {self.url.replace('http', 'https', 1)}"
            raise LullmError(f"no answer from {self.url}: {reason}") from None

    def _explain(self, path: str, status: int, body: bytes) -> str:
        try:
            message = _message(json.loads(body))
        except ValueError:
            message = None
        if message is None:
            return str(self._stranger())
        code = json.loads(body)["error"].get("code")
        if status == 404 and code == "admin_port_only":
            return (
                f"the server on {self.url} sleeps and wakes on its --admin-port only; its log names the --url of that"
            )
        if status == 404 and code == "sleep_mode_off":
            return f"the server on {self.url} has no {path.partition('?')[0]}; start it with --enable-sleep-mode"
        return f"the server on {self.url} answers {status}: {message}"

    def _stranger(self) -> LullmError:
        return LullmError(f"what listens on {self.url} is not a lullm server")


def _message(answer: Any) -> str | None:
    """The message of an error's envelope."""
    try:
        return str(answer["error"]["message"])
    except (KeyError, TypeError):
        return None


class _UnixHandler(urllib.request.HTTPHandler):
    """HTTP over a unix socket: opens every http URL at the socket in the file `path`."""

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
