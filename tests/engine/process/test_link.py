"""The callers' end of a connection, with a socket of ours in the place of the engine's process."""

import asyncio
import contextlib
import os
import socket
import time
from types import SimpleNamespace

import pytest

from lullm.config.engine import EngineConfig
from lullm.engine.caller.backlog import MAX_UNREAD
from lullm.engine.caller.entry import Entry
from lullm.engine.process.frame import FrameReader, framed
from lullm.engine.process.link import EngineLink
from lullm.engine.process.message import (
    HERE,
    Admit,
    Answer,
    Call,
    Cancel,
    Ended,
    Outputs,
    Refused,
    Status,
    Stop,
    Taken,
    WireCompletion,
    WireOutput,
    Withdraw,
    decode_command,
    encode,
)
from lullm.errors import (
    EngineAsleepError,
    EngineDeadError,
    InvalidRequestError,
    LullmError,
    SleepCancelledError,
    UnsupportedError,
)
from lullm.types.monitor.stats import EngineStats
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind, SamplingParams
from lullm.types.wire.plain_error import plain_error

AWAKE = Status(EngineStats(), "awake", (), False)
ASLEEP = Status(EngineStats(num_blocks=7), "discard_all", ("weights", "kv_cache"), True)


class House:
    """A link, and the other end of its socket."""

    def __init__(self, **options):
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.settimeout(5)
        self.joined = 0
        self.process = SimpleNamespace(
            owner=os.getpid(),
            sock=self.ours,
            cause_of_death=self.cause_of_death,
            join=self.join,
            tick_s=0.01,
            lose_if_silent=self.look,
        )
        self.is_silent = False
        self.heard = []
        self.link = EngineLink(self.process, AWAKE, str, self.heard.append)
        self.entry = Entry(self.link, EngineConfig(enable_sleep_mode=True, **options).idle)
        self._reader = FrameReader()
        self._commands = []

    def cause_of_death(self):
        self.ours.close()
        return "the engine's process was killed"

    def look(self):
        if self.is_silent:  # a real one kills the process
            self.theirs.close()

    def join(self):
        self.joined += 1

    def close(self):
        self.ours.close()
        self.theirs.close()

    def tell(self, *news):
        self.theirs.sendall(b"".join(framed(encode(each)) for each in news))

    async def command(self):
        """The next command that was sent."""
        while not self._commands:
            data = await asyncio.to_thread(self.theirs.recv, 1 << 16)
            assert data, "closed"
            self._commands += map(decode_command, self._reader.feed(data))
        return self._commands.pop(0)

    def stream(self, request_id="r", kind=OutputKind.DELTA):
        request = GenerateRequest(request_id, "text", [1, 2], SamplingParams(output_kind=kind), 0, 0.0)
        return self.entry.outputs(request, None)


def delta(serial, *token_ids, finished=False):
    completion = WireCompletion(0, "x" * len(token_ids), list(token_ids), None, None, "stop" if finished else None)
    return WireOutput(serial, [completion], finished)


def run(main, **options):
    async def bounded():
        with contextlib.closing(House(**options)) as house:
            async with asyncio.timeout(20):
                await main(house)

    asyncio.run(bounded())


def test_many_outputs_in_one_message_reach_their_streams():
    async def main(house):
        async def read(stream):
            return [token for output in [o async for o in stream] for token in output.outputs[0].token_ids]

        readers = [asyncio.create_task(read(house.stream(f"r{number}"))) for number in range(3)]
        serials = [(await house.command()).serial for _ in readers]
        house.tell(Outputs([delta(serial, serial) for serial in serials], ASLEEP))
        house.tell(Outputs([delta(serial, 50 + serial, finished=True) for serial in serials]))
        assert await asyncio.gather(*readers) == [[serial, 50 + serial] for serial in serials]
        assert house.link.status == ASLEEP and not house.link._requests, "a status stays until the next"

    run(main)


def test_a_reader_that_goes_withdraws_its_request():
    async def main(house):
        stream = house.stream()
        first = asyncio.create_task(anext(stream))
        serial = (await house.command()).serial
        house.tell(Outputs([delta(serial, 1)]))
        await first
        await stream.aclose()
        assert await house.command() == Withdraw(serial)
        house.tell(Outputs([delta(serial, 2)]))  # was on its way
        await asyncio.sleep(0.01)
        assert not house.link._requests

    run(main)


def test_a_slow_reader_costs_no_more_than_its_answer():
    async def main(house):
        stream = house.stream()
        first = asyncio.create_task(anext(stream))
        serial = (await house.command()).serial
        for token_id in range(1000):
            house.tell(Outputs([delta(serial, token_id, finished=token_id == 999)]))
            if token_id % 20 == 0:
                await asyncio.sleep(0)
        while house.link._requests:
            await asyncio.sleep(0.001)
        rest = [await first, *[output async for output in stream]]
        assert len(rest) <= MAX_UNREAD + 2
        assert [token for output in rest for token in output.outputs[0].token_ids] == list(range(1000))

    run(main)


def test_a_refusal_and_a_call_that_fails():
    async def main(house):
        first = asyncio.create_task(anext(house.stream()))
        command = await house.command()
        assert isinstance(command, Admit)
        house.tell(Refused(command.serial, plain_error(InvalidRequestError("no", "request_id"), HERE)))
        with pytest.raises(InvalidRequestError) as info:
            await first
        assert info.value.param == "request_id"
        call = asyncio.create_task(house.link.call("wake_up", bool, tags=None))
        command = await house.command()
        assert (command.verb, command.arguments) == ("wake_up", {"tags": None})
        house.tell(Answer(command.serial, ASLEEP, error=plain_error(SleepCancelledError("overtaken"), HERE)))
        with pytest.raises(SleepCancelledError):
            await call
        assert house.link.status == ASLEEP

    run(main)


def test_a_call_that_is_cancelled_is_cancelled_over_there():
    async def main(house):
        call = asyncio.create_task(house.link.call("sleep", bool, level=1))
        command = await house.command()
        assert isinstance(command, Call) and house.link.is_away, "a sleep may have begun"
        call.cancel()
        assert await house.command() == Cancel(command.serial)
        assert not house.link.is_away

    run(main)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("closed", "^the engine's process was killed; start it again"),
        ("silent", "^the engine's process was killed; start it again"),
        ("told", "died in a step"),
    ],
)
def test_the_end_of_the_engine_fails_all_that_wait(how, text):
    async def main(house):
        stream = asyncio.create_task(anext(house.stream()))
        call = asyncio.create_task(house.link.call("occupancy", bool, max_cells=1))
        await house.command()
        await house.command()
        if how == "told":
            house.tell(Ended(plain_error(EngineDeadError("the engine died in a step"), HERE)))
        elif how == "silent":
            house.is_silent = True
        else:
            house.theirs.close()
        for each in (stream, call):
            with pytest.raises(EngineDeadError, match=text):
                await each
        for use in (house.link.check_running, lambda: house.link.send([])):
            with pytest.raises(EngineDeadError, match=text):
                use()
        with pytest.raises(EngineDeadError, match=text):
            await anext(house.stream())
        house.link.stop(drain=True)
        await house.link.join()
        assert house.joined == 1

    run(main)


def test_the_end_that_was_asked_for():
    async def main(house):
        house.link.stop(drain=True)
        stopping = asyncio.create_task(house.link.join())
        assert await house.command() == Stop(True)
        with pytest.raises(EngineDeadError, match="takes no new requests"):
            house.link.check_running()
        assert not stopping.done()
        house.tell(Ended())
        await stopping
        house.link.stop(drain=False)
        await house.link.join()
        with pytest.raises(EngineDeadError, match="has been shut down"):
            house.link.check_running()

    run(main)


def test_a_process_that_does_not_read_does_not_stop_the_loop():
    async def main(house):
        calls = [asyncio.create_task(house.link.call("abort", bool, ids="x" * 100_000)) for _ in range(20)]
        started = time.monotonic()
        await asyncio.sleep(0.01)
        assert time.monotonic() - started < 2 and len(house.link._unsent) > 1_000_000
        for call in calls:
            command = await house.command()
            house.tell(Answer(command.serial, AWAKE, encode(True)))
            await call
        assert not house.link._unsent

    run(main)


def test_requests_that_wait_for_a_wake_up_are_confirmed_or_told():
    async def main(house):
        house.link.status = ASLEEP
        first = asyncio.create_task(anext(house.stream()))
        command = await house.command()
        with pytest.raises(EngineAsleepError, match="1 requests wait already"):
            await anext(house.stream("other"))
        with pytest.raises(EngineAsleepError, match="within 0.05 s"):
            await first
        assert await house.command() == Withdraw(command.serial)
        second = asyncio.create_task(anext(house.stream()))
        serial = (await house.command()).serial
        house.tell(Taken(serial))
        await asyncio.sleep(0.1)
        house.tell(Outputs([delta(serial, 1)]))
        assert (await second).outputs[0].token_ids == [1]

    run(main, auto_wake=True, wake_timeout=0.05, max_num_wake_waiting=1)


def test_it_moves_to_another_event_loop_but_serves_one_at_a_time():
    house = House()

    async def ask():
        call = asyncio.create_task(house.link.call("reset_prefix_cache", bool))
        command = await house.command()
        house.tell(Answer(command.serial, AWAKE, encode(True)))
        return await call

    assert asyncio.run(ask()) and asyncio.run(ask())

    async def from_two_loops():
        assert await ask()
        with pytest.raises(LullmError, match="one event loop at a time"):
            await asyncio.to_thread(lambda: asyncio.run(house.link.call("reset_prefix_cache", bool)))

    asyncio.run(from_two_loops())
    house.close()


def test_a_fork_reads_nothing_that_is_for_the_engines_process():
    async def main(house):
        house.process.owner += 1
        for call in (house.link.call("abort", None), house.link.join()):
            with pytest.raises(UnsupportedError, match="of which this is a fork"):
                await call
        with pytest.raises(UnsupportedError, match="of which this is a fork"):
            house.link.stop(drain=False)
        house.theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            house.theirs.recv(1)

    run(main)
