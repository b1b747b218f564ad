"""Readers of requests whose ids are used again: the later one waits until the earlier one has left its engine."""

import asyncio
import queue
from types import SimpleNamespace

from lullm.engine.replica.engine import _read_in_turn


class SlowToLeave:
    """A client whose streams take some turns of the loop to end, as those of another process do."""

    def __init__(self):
        self.ids: set[str] = set()

    async def stream(self, request):
        assert request.request_id not in self.ids, "already in use"
        self.ids.add(request.request_id)
        try:
            yield request.number
            await asyncio.Event().wait()
        finally:
            for _ in range(9):
                await asyncio.sleep(0)
            self.ids.remove(request.request_id)


def test_readers_of_one_id_take_turns():
    async def main():
        client, news, readers = SlowToLeave(), queue.SimpleQueue(), {}
        tasks = []
        for number in range(4):  # the third is aborted while it waits for the second
            request = SimpleNamespace(request_id="again", number=number)
            tasks.append(asyncio.create_task(_read_in_turn(client, request, news, readers)))
            for _ in range(30 if number == 0 else 3):
                await asyncio.sleep(0)
            if number < 3:
                tasks[-1].cancel()
        while news.qsize() < 2:
            await asyncio.sleep(0)
        tasks[-1].cancel()
        await asyncio.wait(tasks)
        return [news.get() for _ in range(news.qsize())], readers

    seen, readers = asyncio.run(asyncio.wait_for(main(), 10))
    assert [output for _, output in seen] == [0, 3] and not readers
