"""Requests that come in the same moment go to the engine together, and nothing overtakes them."""

import asyncio

import pytest

from lullm.config.engine import EngineConfig
from lullm.engine.caller.entry import Entry
from lullm.errors import EngineDeadError
from lullm.types.outputs import CompletionOutput, RequestOutput
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams


class Door:
    """Records what was sent and withdrawn."""

    def __init__(self, is_dead=False):
        self.sent, self.withdrawn, self.is_dead, self.is_away = [], [], is_dead, False

    def check_running(self):
        pass

    def send(self, arrivals):
        if self.is_dead:
            raise EngineDeadError("gone")
        self.sent.append([request.request_id for request, _ in arrivals])
        for request, stream in arrivals:
            stream.items.put(RequestOutput(request.request_id, None, [1], [CompletionOutput(0, "x", [1])], True))

    def withdraw(self, request, stream):
        self.withdrawn.append(request.request_id)


class Taker:
    is_ready = True

    def __init__(self):
        self.taken = []

    def when_ready(self, call):
        raise AssertionError("it is ready")

    def take(self, output):
        self.taken.append(output.request_id)


def ask(entry, number, reader):
    request = GenerateRequest(f"r{number}", None, [1], SamplingParams(), 0, 0.0)
    return asyncio.ensure_future(entry.run(request, reader, None))


def test_requests_of_the_same_moment_go_together():
    async def main():
        door, reader = Door(), Taker()
        entry = Entry(door, EngineConfig().idle)
        asked = [ask(entry, 0, reader)]
        await asyncio.sleep(0)  # as sockets are read: some of them a turn later
        asked += [ask(entry, number, reader) for number in (1, 2)]
        assert door.sent == []
        await asyncio.gather(*asked)
        assert door.sent == [["r0", "r1", "r2"]] and reader.taken == ["r0", "r1", "r2"] and door.withdrawn == []
        await ask(entry, 3, reader)
        assert door.sent[1:] == [["r3"]]

    asyncio.run(main())


def test_a_call_does_not_overtake_requests():
    async def main():
        door, reader = Door(), Taker()
        entry = Entry(door, EngineConfig().idle)
        asked = ask(entry, 0, reader)
        await asyncio.sleep(0)
        entry.send_arrived()
        assert door.sent == [["r0"]]
        await asked
        entry.send_arrived()
        assert door.sent == [["r0"]], "nothing has come since"

    asyncio.run(main())


def test_a_request_that_was_given_up_is_not_sent():
    async def main():
        door = Door()
        entry = Entry(door, EngineConfig().idle)
        asked = [ask(entry, number, Taker()) for number in range(2)]
        await asyncio.sleep(0)
        asked[0].cancel()
        await asked[1]
        assert door.sent == [["r1"]] and door.withdrawn == ["r0"]

    asyncio.run(main())


def test_requests_to_a_dead_engine_get_its_error():
    async def main():
        entry = Entry(Door(is_dead=True), EngineConfig().idle)
        asked = [ask(entry, number, Taker()) for number in range(2)]
        for each in asked:
            with pytest.raises(EngineDeadError, match="gone"):
                await each

    asyncio.run(main())


def test_a_loop_that_closed_before_it_sent_is_forgotten():
    door = Door()
    entry = Entry(door, EngineConfig().idle)
    request = GenerateRequest("early", None, [1], SamplingParams(), 0, 0.0)

    async def leave_early():
        stream = entry._stream(request, None)
        entry._send(request, stream)

    for run in (leave_early, leave_early):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(run())
        loop.close()
        assert len(entry._arrivals) == 1
    asyncio.run(entry_run(entry))
    assert not entry._arrivals and door.sent == [["r0"]]


async def entry_run(entry):
    await ask(entry, 0, Taker())
