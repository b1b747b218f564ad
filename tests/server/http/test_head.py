"""Heads of requests: what is read, and what is refused since another reader could read it in another way."""

import pytest

from lullm.server.http.head import MAX_HEAD_BYTES, Head, MalformedError, take_head

HOST = b"Host: x\r\n"


def test_a_request():
    data = bytearray(
        b"POST /a%20b?c=1 HTTP/1.1\r\nHost: x\r\nContent-LENGTH: 3\r\nX-A:\t two words \r\nX-A:\r\n\r\nabcGET"
    )
    headers = [(b"host", b"x"), (b"content-length", b"3"), (b"x-a", b"two words"), (b"x-a", b"")]
    assert take_head(data) == Head("POST", b"/a%20b?c=1", "1.1", headers, 3, True, False)
    assert data == b"abcGET", "the rest is left"


def test_a_head_in_pieces():
    whole = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    for cut in range(len(whole)):
        data = bytearray(whole[:cut])
        assert take_head(data) is None
        data += whole[cut:]
        assert take_head(data) is not None and not data


@pytest.mark.parametrize(
    ("lines", "length", "stays", "asks_first"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST, 0, True, False),
        (b"\r\n\r\nGET / HTTP/1.1\r\n" + HOST, 0, True, False),
        (b"GET / HTTP/1.1\nHost: x\n", 0, True, False),
        (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: Keep-Alive, Close\r\n", 0, False, False),
        (b"GET / HTTP/1.0\r\n", 0, False, False),
        (b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: Chunked\r\n", None, True, False),
        (b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 7\r\nContent-Length: 7\r\n", 7, True, False),
        (b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 7\r\nExpect: 100-Continue\r\n", 7, True, True),
        (b"GET / HTTP/1.1\r\n" + HOST + "X-A: é\r\n".encode(), 0, True, False),
    ],
)
def test_what_a_head_says(lines, length, stays, asks_first):
    head = take_head(bytearray(lines + b"\r\n"))
    assert head is not None and (head.length, head.stays, head.asks_first) == (length, stays, asks_first)


@pytest.mark.parametrize(
    "lines",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET /\r\n",
        b"GET / HTTP/2.0\r\n" + HOST,
        b"GET  / HTTP/1.1\r\n" + HOST,
        b"GET /\x01 HTTP/1.1\r\n" + HOST,
        b"GET / HTTP/1.1 \r\n" + HOST,
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + HOST,
        b"GET / HTTP/1.1\r\n" + HOST + b"X-A : space\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b" folded\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X-A: a\x00b\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"X-A: a\rb\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"no colon\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b": no name\r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 1, 1\r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: +1\r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: \xb2\r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 1" + b"0" * 18 + b"\r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: \r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n",
        b"PUT / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n",
        b"GET /" + b"x" * MAX_HEAD_BYTES,
    ],
)
def test_what_is_refused(lines):
    with pytest.raises(MalformedError):
        take_head(bytearray(lines + b"\r\n"))


def test_a_head_without_an_end_is_refused_before_it_fills_the_memory():
    assert take_head(bytearray(b"GET /" + b"x" * (MAX_HEAD_BYTES - 6))) is None
    with pytest.raises(MalformedError, match="longer than"):
        take_head(bytearray(b"GET /" + b"x" * MAX_HEAD_BYTES))
