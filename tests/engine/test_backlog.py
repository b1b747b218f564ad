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
