"""What is fetched from web servers: from hosts that are allowed alone, also behind redirects, and not for ever."""

import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme

from lullm.errors import InvalidRequestError
from lullm.vision import network
from lullm.vision.network import fetch

HERE = ("127.0.0.1",)


class Answers(BaseHTTPRequestHandler):
    """/ok?... answers; /to/URL redirects there, .../again to itself; /drip sends a byte now and then."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path if self.path.endswith("/again") else self.path[4:])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path.startswith("/drip"):
            self.send_response(200)
            self.end_headers()
            try:
                while not self.server.is_over.wait(0.02):
                    self.wfile.write(b".")
            except OSError:
                pass
            self.close_connection = True
        elif self.path.startswith("/chunked"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nhello\r\n0\r\n\r\n")
        else:
            body = self.path.encode() if self.path.startswith("/ok") else b"not here"
            self.send_response(200 if self.path.startswith("/ok") else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def here():
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.is_over = threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.is_over.set()
        server.shutdown()
        thread.join()


def test_what_a_server_answers(here):
    assert fetch(f"{here}/ok/a.png?size=1&x=%20", "picture", HERE) == b"/ok/a.png?size=1&x=%20"
    assert fetch(f"{here}/ok/ä b", "picture", HERE) == b"/ok/%C3%A4%20b"
    assert fetch(f"{here}/chunked", "picture", HERE) == b"hello"
    assert fetch(f"{here}/to//ok/there", "picture", HERE) == b"/ok/there"
    assert fetch(f"{here}/to/{here}/ok", "picture", ("example.com", *HERE)) == b"/ok"


def test_what_is_not_fetched(here, monkeypatch):
    monkeypatch.setattr(network, "MAX_BYTES", 16)
    port = here.rpartition(":")[2]
    for url, words in (
        (f"{here}/none", "answers 404"),
        (f"{here}/ok/more/than/sixteen", "above 16 bytes"),
        (f"http://localhost:{port}/ok", "'localhost', which allowed_media_domains does not name"),
        (f"{here}/to/http://localhost:{port}/ok", "'localhost', which allowed_media_domains does not name"),
        (f"{here}/to/file:///etc/hostname", "http:// and https:// URLs"),
        (f"http://me:secret@127.0.0.1:{port}/ok", "no user and no password"),
        (f"{here}/to//again", "more than 5 times"),
        ("http://127.0.0.1:99999/ok", "cannot be fetched"),
        ("http://127.0.0.1:x/ok", "cannot be fetched"),
        (f"https://127.0.0.1:{port}/ok", "cannot be fetched"),
        ("http:///ok", "http:// and https:// URLs"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            fetch(url, "picture", HERE)


def test_over_tls(monkeypatch, tmp_path):
    """The name in the certificate is compared, though the connection is made to an address."""
    known, stranger = trustme.CA(), trustme.CA()
    known.cert_pem.write_to_path(tmp_path / "known.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "known.pem"))
    for authority, name, words in (
        (known, "localhost", None),
        (known, "elsewhere.example", "certificate"),
        (stranger, "localhost", "certificate"),
    ):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            server.handle_error = lambda *_: None  # a client that turns away
            thread = threading.Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            url = f"https://localhost:{server.server_port}/ok"
            try:
                if words is None:
                    assert fetch(url, "picture", ("localhost",)) == b"/ok"
                else:
                    with pytest.raises(InvalidRequestError, match=words):
                        fetch(url, "picture", ("localhost",))
            finally:
                server.shutdown()
                thread.join()


@pytest.mark.parametrize("path", ["/drip", "silent"])
def test_a_slow_server_is_not_waited_for(here, path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/" if path == "silent" else here + path
        begun = time.monotonic()
        with pytest.raises(InvalidRequestError, match=r"no answer within 0\.2 s"):
            fetch(url, "sound", HERE, time_limit_s=0.2)
        assert time.monotonic() - begun < 4  # of the 5 s that each read may take


def test_any_host_is_none_of_this_network(here):
    port = here.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f.1"):
        with pytest.raises(InvalidRequestError, match="private network|cannot be fetched"):
            fetch(f"http://{host}:{port}/ok", "picture", ("*",))
    assert fetch(f"{here}/ok", "picture", ("*", *HERE)) == b"/ok"  # the operator names it


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("::ffff:93.184.216.34", True),
        ("10.0.0.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::a00:1", False),
        ("2002:a00:1::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
    ],
)
def test_public_addresses(address, is_public):
    assert network._is_public(address) is is_public


def test_an_address_is_asked_for_once(here, monkeypatch):
    """A second answer of the resolver could be another one (DNS rebinding)."""
    asked, real = [], socket.getaddrinfo

    def once(host, *rest, **options):
        asked.append(host)
        return real("127.0.0.1", *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", once)
    port = here.rpartition(":")[2]
    assert fetch(f"http://pictures.example:{port}/ok", "picture", ("Pictures.Example.",)) == b"/ok"
    assert asked == ["pictures.example"]
