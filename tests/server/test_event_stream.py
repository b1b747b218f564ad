"""Messages that leave at once, outside of a task, and wait in one where a connection is full."""

import asyncio
from types import SimpleNamespace

import pytest

from lullm.errors import EngineAsleepError
from lullm.server.error import ApiError
from lullm.server.gate.half_close import PROD
from lullm.server.gate.request_log import RECORD, RequestRecord
from lullm.server.openai.event_stream import EventStream, Sender
from lullm.server.sse import EVENTS


class Connection:
    """ASGI's `send`, which waits while the connection is full."""

    def __init__(self):
        self.sent, self.room = [], asyncio.Event()
        self.room.set()

    async def send(self, message):
        while not self.room.is_set():
            await self.room.wait()
        await asyncio.sleep(0) if message == "yields" else None
        if message == "fails":
            raise OSError("reset")
        self.sent.append(message)


def test_messages_leave_within_the_call():
    async def main():
        connection = Connection()
        sender = Sender(connection.send)
        sender.send(["a", "b"])
        assert connection.sent == ["a", "b"] and sender.is_idle

    asyncio.run(main())


def test_a_full_connection_gets_the_rest_later_in_order():
    async def main():
        connection, told = Connection(), []
        sender = Sender(connection.send)
        connection.room.clear()
        sender.send(["a", "yields", "b"])
        assert not sender.is_idle and connection.sent == []

        def tell():
            told.append(list(connection.sent))

        for _ in range(3):
            sender.when_idle(tell)
        connection.room.set()
        await sender.wait()
        assert connection.sent == ["a", "yields", "b"] and sender.is_idle
        assert told == [["a", "yields", "b"]], "once"

    asyncio.run(main())


def test_an_error_of_the_connection_is_raised_where_it_is_noticed():
    async def main():
        connection = Connection()
        sender = Sender(connection.send)
        with pytest.raises(OSError, match="reset"):
            sender.send(["fails"])
        connection.room.clear()
        sender.send(["fails"])
        connection.room.set()
        with pytest.raises(OSError, match="reset"):
            await sender.wait()

    asyncio.run(main())


def test_what_waits_is_given_up_with_the_request():
    async def main():
        connection = Connection()
        sender = Sender(connection.send)
        connection.room.clear()
        sender.send(["a"])
        sender.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        connection.room.set()
        await asyncio.sleep(0)
        assert connection.sent == [] and sender.is_idle

    asyncio.run(main())


@pytest.mark.parametrize("is_started", [False, True])
def test_a_connection_does_not_prod_a_stream_that_has_failed(is_started):
    """A half-closed one prods within the turn of the loop in which the reason was sent, which raised in the loop."""

    async def main():
        connection = Connection()

        async def run(stream):
            if is_started:
                scope[PROD]()
            raise EngineAsleepError("asleep")

        async def receive():
            await asyncio.Event().wait()

        context = SimpleNamespace(api_error=lambda error: ApiError(503, str(error), code="engine_asleep"))
        generation = SimpleNamespace(run=run, context=context)
        form = SimpleNamespace(media_type=EVENTS, failure=lambda error: error.code.encode())
        scope = {"type": "http", RECORD: RequestRecord()}
        try:
            await EventStream(generation, form)(scope, receive, connection.send)
        except EngineAsleepError:
            assert not is_started
        assert PROD not in scope
        assert [each.get("more_body") for each in connection.sent] == ([None, True, False] if is_started else [])

    asyncio.run(main())
