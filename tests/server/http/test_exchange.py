"""One request and its answer: what goes on the wire, in how many writes, and what a client's end does."""

import asyncio
import logging

import pytest

from lullm.server.http.exchange import Exchange
from lullm.server.http.head import take_head

OK = {"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]}


class ScriptedPeer:
    def __init__(self, stays: bool = True):
        self.stays, self.is_full, self.default_headers = stays, False, [(b"date", b"now")]
        self.writes: list[bytes] = []
        self.marks: list[str] = []

    def write(self, data):
        self.writes.append(data)

    async def drained(self):
        self.marks.append("drained")

    def read_on(self): ...

    def end_exchange(self):
        self.marks.append("ended")

    def close(self):
        self.marks.append("closed")


def exchange_of(peer, request=b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"):
    return Exchange(peer, take_head(bytearray(request)), {"type": "http"})


def body(data, more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


def answer(peer, exchange, *messages):
    async def app(scope, receive, send):
        for message in messages:
            await send(message)

    asyncio.run(exchange.run(app))


def test_a_stream_leaves_in_one_write_per_message():
    peer = ScriptedPeer()
    answer(peer, exchange_of(peer), OK, body(b"one", True), body(b"", True), body(b"two"))
    head = b"HTTP/1.1 200 OK\r\ndate: now\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n"
    assert peer.writes == [head + b"3\r\none\r\n", b"3\r\ntwo\r\n0\r\n\r\n"] and peer.marks == ["ended"]


@pytest.mark.parametrize(
    ("request_head", "status", "headers", "wire"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 200, [(b"Content-Length", b"3")], b"Content-Length: 3\r\n\r\nabc"),
        (b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", 200, [(b"content-length", b"3")], b"content-length: 3\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 204, [], b"date: now\r\n\r\n"),
        (b"GET / HTTP/1.0\r\n\r\n", 200, [], b"connection: close\r\n\r\nabc"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 599, [(b"content-length", b"3")], b"content-length: 3\r\n\r\nabc"),
    ],
)
def test_how_a_body_is_framed(request_head, status, headers, wire):
    peer = ScriptedPeer()
    start = {"type": "http.response.start", "status": status, "headers": headers}
    answer(peer, exchange_of(peer, request_head), start, body(b"abc"))
    assert b"".join(peer.writes).startswith(b"HTTP/1.1 %d " % status) and peer.writes[-1].endswith(wire)


def test_a_connection_that_ends_says_so():
    peer = ScriptedPeer(stays=False)
    answer(peer, exchange_of(peer), OK, body(b"x"))
    assert b"connection: close\r\n" in peer.writes[0]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [body(b"early")],
        [{**OK, "headers": [(b"x", b"y\r\nset-cookie: z")]}],
        [{**OK, "headers": [(b"content-length", b"3")]}, body(b"four")],
    ],
    ids=["nothing", "order", "line end", "length"],
)
def test_an_application_that_is_wrong(messages, caplog):
    peer = ScriptedPeer()
    with caplog.at_level(logging.ERROR, "lullm"):
        answer(peer, exchange_of(peer), *messages)
    assert b"set-cookie" not in b"".join(peer.writes)
    assert peer.marks == ["closed"] if len(messages) == 2 else b" 500 " in peer.writes[0]


def test_an_answer_without_its_end_is_cut():
    peer = ScriptedPeer()
    answer(peer, exchange_of(peer), {**OK, "headers": [(b"content-length", b"9")]}, body(b"part", True))
    assert peer.marks == ["closed"], "the client must not take it for whole"


def test_a_body_comes_in_parts_and_then_the_clients_end():
    async def main():
        peer, seen = ScriptedPeer(), []
        exchange = exchange_of(peer, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")

        async def app(scope, receive, send):
            while not seen or seen[-1]["type"] != "http.disconnect":
                seen.append(await receive())
            await send(OK)
            await send(body(b"nobody reads this"))

        task = asyncio.create_task(exchange.run(app))
        await asyncio.sleep(0)
        assert peer.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
        for part, is_end in ((b"ab", False), (b"cd", True)):
            exchange.feed(part, is_end)
            await asyncio.sleep(0)
        exchange.leave()
        await task
        assert [message.get("body") for message in seen] == [b"ab", b"cd", None]
        assert [message.get("more_body") for message in seen] == [True, False, None]
        assert len(peer.writes) == 1 and peer.marks == []

    asyncio.run(main())


def test_a_slow_reader_is_waited_for():
    peer = ScriptedPeer()
    peer.is_full = True
    answer(peer, exchange_of(peer), OK, body(b"x"))
    assert peer.marks == ["drained", "drained", "ended"]
