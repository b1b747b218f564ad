"""What waits for a reader stays short, and no token of it is lost."""

import asyncio

import pytest

from lullm.engine.caller.backlog import MAX_UNREAD, Backlog
from lullm.errors import EngineDeadError
from lullm.types.outputs import CompletionOutput, RequestOutput

NUM = 10 * MAX_UNREAD


def output(number, is_delta):
    token_ids = [number] if is_delta else list(range(number + 1))
    return RequestOutput("r", None, [1], [CompletionOutput(0, "x" * len(token_ids), token_ids)], number == NUM - 1)


def read_all(backlog):
    async def read():
        return [await backlog.take() for _ in range(len(backlog))]

    return asyncio.run(read())


@pytest.mark.parametrize("is_delta", [True, False])
def test_a_reader_that_sleeps_gets_everything_in_few_outputs(is_delta):
    backlog = Backlog(is_delta)
    for number in range(NUM):
        backlog.put(output(number, is_delta))
    found = read_all(backlog)
    assert len(found) == MAX_UNREAD and [each.finished for each in found] == [False] * (MAX_UNREAD - 1) + [True]
    completions = [each.outputs[0] for each in found]
    tokens = sum((c.token_ids for c in completions), []) if is_delta else completions[-1].token_ids
    assert tokens == list(range(NUM)) and completions[-1].text == "x" * len(completions[-1].token_ids)


def test_a_reader_waits_for_the_first():
    async def main():
        backlog = Backlog(True)
        reader = asyncio.ensure_future(backlog.take())
        await asyncio.sleep(0)
        backlog.put(output(0, True))
        backlog.put(output(1, True))
        assert await reader == output(0, True) and await backlog.take() == output(1, True)

    asyncio.run(main())


def test_a_reader_that_keeps_up_gets_each_output_as_it_is():
    backlog = Backlog(True)
    for number in range(NUM):
        backlog.put(output(number, True))
        if number >= MAX_UNREAD - 1:
            assert asyncio.run(backlog.take()) == output(number - MAX_UNREAD + 1, True)


def test_an_error_is_not_joined():
    backlog, error = Backlog(True), EngineDeadError("gone")
    for number in range(MAX_UNREAD):
        backlog.put(output(number, True))
    backlog.put(error)
    assert read_all(backlog)[-1] is error


class SlowReader:
    """Takes `room` outputs, and more once there is room again."""

    def __init__(self, room):
        self.room, self.taken, self.calls = room, [], []

    @property
    def is_ready(self):
        return self.room > 0

    def when_ready(self, call):
        self.calls.append(call)

    def take(self, output):
        self.room -= 1
        self.taken.append(output)

    def make_room(self, room):
        self.room = room
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_a_reader_takes_outputs_within_the_call_that_puts_them():
    async def main():
        backlog, reader = Backlog(True), SlowReader(NUM)
        backlog.put(output(0, True))
        poured = asyncio.ensure_future(backlog.pour(reader))
        await asyncio.sleep(0)
        assert len(reader.taken) == 1, "what came before it"
        for number in range(1, NUM):
            backlog.put(output(number, True))
            assert len(reader.taken) == number + 1
        assert await poured is None

    asyncio.run(main())


def test_outputs_wait_for_a_reader_without_room_and_are_joined():
    async def main():
        backlog, reader = Backlog(True), SlowReader(1)
        poured = asyncio.ensure_future(backlog.pour(reader))
        await asyncio.sleep(0)
        for number in range(NUM):
            backlog.put(output(number, True))
        assert len(reader.taken) == 1 and len(backlog) == MAX_UNREAD
        reader.make_room(2)
        assert len(reader.taken) == 3
        reader.make_room(NUM)
        assert await poured is None and len(reader.taken) == MAX_UNREAD + 1
        assert sum((each.outputs[0].token_ids for each in reader.taken), []) == list(range(NUM))

    asyncio.run(main())


def test_a_reader_gets_the_error_behind_what_came_before_it():
    async def main():
        backlog, reader, error = Backlog(True), SlowReader(0), EngineDeadError("gone")
        poured = asyncio.ensure_future(backlog.pour(reader))
        await asyncio.sleep(0)
        for item in (output(0, True), output(1, True), error):
            backlog.put(item)
        reader.make_room(5)
        assert await poured is error and len(reader.taken) == 2

    asyncio.run(main())


def test_what_a_reader_raises_ends_its_request_alone():
    async def main():
        backlog, reader = Backlog(True), SlowReader(5)

        def fail(output):
            raise ValueError("no JSON")

        reader.take = fail
        poured = asyncio.ensure_future(backlog.pour(reader))
        await asyncio.sleep(0)
        backlog.put(output(0, True))
        backlog.put(output(1, True))
        with pytest.raises(ValueError, match="no JSON"):
            await poured

    asyncio.run(main())
