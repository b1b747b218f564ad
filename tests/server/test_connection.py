"""Bounds on connections: number, slow heads, slow bodies, and a process without descriptors."""

import asyncio
import contextlib
import errno
import json
import logging
import resource
import socket
import time

import pytest

from lullm.server.gate import connection, descriptor, refusal, request_body
from lullm.server.gate.descriptor import ExhaustionLog, connection_bound, raise_descriptor_limit


def read_all(sock: socket.socket) -> bytes:
    sock.settimeout(10)
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: sock.recv(65536), b""))
    return b""


def test_one_connection_too_many(start, scripted):
    server = start(scripted(), max_connections=2)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(server.address, timeout=10)) for _ in range(3)]
        assert read_all(socks[2]).startswith(b"HTTP/1.1 503 ")
        socks[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert read_all(socks[0]).startswith(b"HTTP/1.1 200 ")
        with server.http() as http:
            assert http.get("/health").status_code == 200, "the place of the one that ended"


def test_a_refusal_for_lack_of_connections_is_not_lost_in_a_reset(start, scripted, monkeypatch):
    """Its client sends a request meanwhile, which nobody would read; and it does not keep the place of its refusal."""
    monkeypatch.setattr(refusal, "LINGER_S", 0.3)
    monkeypatch.setattr("lullm.server.http_server.refusal_bound", lambda num_connections: 1)
    server = start(scripted(), max_connections=1)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(server.address, timeout=10)) for _ in range(3)]
        head, _, body = read_all(socks[1]).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 5" in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        socks[1].sendall(ask("x"))
        time.sleep(0.05)
        socks[1].sendall(ask("x"))  # raises if the first one has reset the connection
        assert read_all(socks[2]).startswith(b"HTTP/1.1 503 "), "no room to linger, so it is closed at once"
        time.sleep(0.6)
        with pytest.raises(OSError):
            for _ in range(2):
                socks[1].sendall(ask("x"))
                time.sleep(0.05)


@pytest.mark.parametrize("start_of_head", [b"", b"GET /health HTT"])
def test_a_slow_head_is_cut(start, scripted, monkeypatch, start_of_head):
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    server = start(scripted())
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(start_of_head)
        assert read_all(sock) == b""


def test_a_slow_head_of_a_later_request_is_cut(start, scripted, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    server = start(scripted())
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GET /hea")
        assert b"HTTP" not in read_all(sock)


def test_a_long_answer_is_not_cut_by_the_heads_time(start, scripted, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S", 0.05)
    engine = scripted()
    server = start(engine)
    with (
        server.http() as http,
        http.stream("POST", "/v1/completions", json={"prompt": "hold", "stream": True}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        engine.wait_held()
        assert not engine.released.wait(0.15)
        engine.released.set()
        assert "data: [DONE]" in list(lines)


def test_a_slow_body_is_answered(start, scripted, monkeypatch):
    monkeypatch.setattr(request_body, "BODY_S", 0.05)
    server = start(scripted())
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"body_timeout" in answer


def test_a_client_that_does_not_read_is_cut(start, scripted, monkeypatch):
    monkeypatch.setattr(connection, "WRITE_S", 0.2)
    engine = scripted(script="x" * 400, max_num_seqs=1000)
    server = start(engine)
    body = json.dumps({"prompt": "x", "n": 1000, "max_tokens": 400, "stream": True})
    with socket.create_connection(server.address, timeout=10) as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall((head + body).encode())
        limit = time.monotonic() + 20
        while not engine.aborted:
            assert time.monotonic() < limit, "the request of a client that does not read goes on"
            time.sleep(0.02)


@pytest.mark.parametrize(("number", "num_lines"), [(errno.EMFILE, 1), (errno.EPERM, 0)])
def test_exhaustion_is_logged_once_a_minute(monkeypatch, caplog, number, num_lines):
    loop, others = asyncio.new_event_loop(), []
    monkeypatch.setattr(loop, "default_exception_handler", others.append)
    log = ExhaustionLog()
    with contextlib.closing(loop), caplog.at_level(logging.ERROR, "lullm"):
        for _ in range(2048):
            log(loop, {"message": "accept", "exception": OSError(number, "x")})
    assert len(caplog.records) == num_lines and len(others) == (0 if num_lines else 2048)


def test_the_bound_leaves_descriptors_free(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    assert connection_bound(1000) == 1000
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert 1 <= connection_bound(1000) <= 64 - descriptor.KEPT_FREE


def test_the_limit_is_raised_to_the_hard_limit(monkeypatch):
    limits = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, values: limits.append(values))
    for soft, hard in ((64, 4096), (4096, 4096), (64, resource.RLIM_INFINITY)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, values=(soft, hard): values)
        raise_descriptor_limit()
    assert limits == [(4096, 4096), (descriptor.MOST, resource.RLIM_INFINITY)]


def test_refused_connections_have_their_own_bound(monkeypatch):
    monkeypatch.setattr(descriptor, "_num_free", lambda: 200)
    assert descriptor.refusal_bound(connection_bound(1000)) == 16, "half of what is kept free beside 168"
    assert descriptor.refusal_bound(connection_bound(50)) == 118
    monkeypatch.setattr(descriptor, "_num_free", lambda: descriptor.MOST)
    assert descriptor.refusal_bound(connection_bound(1000)) == 1024


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_half_open_connection_ends(start, scripted, share):
    """A client that says that nothing more comes, before or within its body; the next one is served."""
    server = start(scripted(), max_connections=1)
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    for _ in range(3):
        with socket.create_connection(server.address, timeout=10) as sock:
            sock.sendall(head + body[: int(share * len(body))])
            sock.shutdown(socket.SHUT_WR)
            answer = read_all(sock)
        assert answer == b""
    with server.http() as http:
        assert http.get("/health").status_code == 200 and http.get("/load").json() == {"server_load": 0}


def ask(prompt: str, version: bytes = b"1.1", **fields: object) -> bytes:
    body = json.dumps({"prompt": prompt, "max_tokens": 9} | fields).encode()
    head = b"POST /v1/completions HTTP/%b\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (version, len(body))
    return head + body


@pytest.mark.parametrize("held_s", [0.0, 0.3])
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_sends_no_more_is_answered(start, scripted, streams, held_s):
    """As `nc -N` does. An answer that takes a while begins with an interim one, and the connection ends with it."""
    engine = scripted()
    with socket.create_connection(start(engine, max_connections=1).address, timeout=10) as sock:
        sock.sendall(ask("x") + ask("hold", stream=streams))
        sock.shutdown(socket.SHUT_WR)
        engine.wait_held()
        time.sleep(held_s)
        engine.released.set()
        answers = read_all(sock)
    assert answers.count(b"HTTP/1.1 200 OK") == 2 and (b"data: [DONE]" in answers) == streams
    assert answers.count(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK") == (held_s > 0 and not streams)
    assert answers.count(b": keep-alive\n\n") == (held_s > 0 and streams)
    assert engine.aborted == []


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_has_gone_is_noticed(start, scripted, version, streams):
    """It sends the same as one that still reads."""
    engine = scripted()
    with socket.create_connection(start(engine).address, timeout=10) as sock:
        sock.sendall(ask("hold", version, stream=streams))
        engine.wait_held()
        if streams:
            sock.recv(1 << 16, socket.MSG_WAITALL | socket.MSG_DONTWAIT)  # unread bytes would make it a reset
    engine.wait_aborted()


def test_requests_behind_each_other_are_answered_in_order(start, scripted):
    """Pipelined: one has a body in chunks, one streams, and the last ends the connection."""
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    stream = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    wire = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    wire += head + b"Content-Length: %d\r\n\r\n%b" % (len(stream), stream)
    wire += b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(start(scripted()).address, timeout=10) as sock:
        sock.sendall(wire)
        answers = read_all(sock)
    assert answers.count(b"HTTP/1.1 200 OK") == 3
    assert answers.index(b'"usage"') < answers.index(b"[DONE]") < answers.index(b'"is_sleeping"')


@pytest.mark.parametrize(
    "wire",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
    ids=["TLS", "chunk"],
)
def test_what_is_no_http_is_refused_at_once(start, scripted, wire):
    with socket.create_connection(start(scripted()).address, timeout=10) as sock:
        sock.sendall(wire)
        assert read_all(sock).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_a_body_that_nobody_reads_stays_in_the_socket(start, scripted):
    """The request before it is still being answered."""
    engine = scripted()
    body = json.dumps({"prompt": "hold", "max_tokens": 9}).encode()
    wire = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(start(engine).address, timeout=10) as sock:
        sock.sendall(wire)
        engine.wait_held()
        sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 67108864\r\n\r\n")
            sock.sendall(b" " * (64 << 20))


@pytest.mark.parametrize("is_busy", [False, True])
def test_an_endless_head_is_cut(start, scripted, is_busy):
    """Also one behind a request that is still being answered, and long before its time is up."""
    engine = scripted()
    body = json.dumps({"prompt": "hold", "max_tokens": 9, "stream": True}).encode()
    wire = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(start(engine).address, timeout=10) as sock:
        if is_busy:
            sock.sendall(wire)
            engine.wait_held()
        with contextlib.suppress(ConnectionError):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (1 << 20))
        answer = read_all(sock)
        engine.released.set()
    assert b"[DONE]" not in answer
    assert is_busy or answer.startswith(b"HTTP/1.1 431 ") or answer == b"", "or lost in the reset that follows"


def test_an_endless_trailer_is_cut(start, scripted):
    """Header fields behind a body in chunks; the request waits for their end."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(start(scripted()).address, timeout=10) as sock:
        sock.sendall(head + b"1\r\n{\r\n0\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(64):
                sock.sendall(b"X: y\r\n" * (1 << 14))


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_a_wish_for_another_protocol_is_not_heard(start, scripted, protocol):
    """Java's HttpClient asks for h2c: httptools took the body for that protocol, and the next request for garbage."""
    body = json.dumps({"prompt": "x", "max_tokens": 2}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n" % len(body)
    head += b"Connection: Upgrade, HTTP2-Settings\r\nUPGRADE: %b\r\nHTTP2-Settings: AAMAAABk\r\n\r\n" % protocol
    with socket.create_connection(start(scripted()).address, timeout=10) as sock:
        sock.sendall(head)
        time.sleep(0.05)
        sock.sendall(body)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b'"is_sleeping"' in read_all(sock)


def test_a_long_body_is_no_head(start, scripted):
    """Twice on one connection."""
    with start(scripted()).http() as http:
        for _ in range(2):
            body = {"prompt": "x", "max_tokens": 2, "user": "a" * 200_000}
            assert http.post("/v1/completions", json=body).status_code == 200


@pytest.mark.parametrize("asks", [{}, {"stream": True}, {"stream": True, "n": 0}], ids=["whole", "stream", "refused"])
def test_answers_in_http_1_0_end_with_their_connection(start, scripted, asks):
    """Proxies and load testers such as `ab` speak it, and it knows no chunks."""
    body = json.dumps({"prompt": "x", "max_tokens": 4} | asks).encode()
    server = start(scripted())
    with socket.create_connection(server.address, timeout=10) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, _, rest = read_all(sock).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
    if asks == {"stream": True}:
        events = rest.split(b"\n\n")
        assert all(event.startswith(b"data: ") for event in events[:-1]) and events[-2:] == [b"data: [DONE]", b""]
    else:
        assert json.loads(rest)
        assert b"content-length: %d" % len(rest) in head.lower()
