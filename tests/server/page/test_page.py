"""The page without a browser: its files and their bounds, the policy, who may see what, and the stream of events."""

import asyncio
import contextlib
import dataclasses
import json
import re
from importlib import resources

import httpx
import pytest

from lullm.server.context import ServerContext
from lullm.server.options import ServerOptions
from lullm.server.page import feed as feed_module
from lullm.server.page.feed import MAX_PERIOD_S, PERIOD_S, Feed, short_id
from lullm.server.page.file import EVENTS_PATH, PAGE_PATHS, page_files
from lullm.server.page.route import POLICY
from lullm.types.monitor.occupancy import Occupancy

MOST_BYTES = 150_000
FILES = {file.path: file.content.decode() for file in page_files()}


def read(http: httpx.Client, num: int, **headers: str) -> list:
    """The first events of the stream."""
    found = []
    with http.stream("GET", EVENTS_PATH, headers=headers) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
            if len(found) == num:
                return found
    return found


def test_the_page_is_small_and_whole():
    assert sum(map(len, FILES.values())) < MOST_BYTES
    folder = resources.files("lullm.server.page") / "web"
    assert {file.name for file in folder.iterdir()} == {path.rpartition("/")[2] or "index.html" for path in FILES}
    linked = set(re.findall(r'(?:href|src|from) ?=? ?"(/[^"]*)"', "".join(FILES.values())))
    assert linked == PAGE_PATHS - {"/"}, "every file is used, and nothing else"


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
def test_nothing_comes_from_elsewhere_and_nothing_parses_html(path):
    text = FILES[path].replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|setHTML", text
    )
    assert not re.search(r"localStorage|sessionStorage|document\.cookie|indexedDB", text), "keys stay in memory"
    assert not re.search(r'\son[a-z]+="|\sstyle="', text), "the policy forbids it"


def test_every_control_has_a_name():
    page = FILES["/"]
    for tag, attributes in re.findall(r"<(input|select|textarea|canvas|aside|section|dialog)\b([^>]*)>", page):
        in_label = re.search(rf"<label[^>]*>(?:(?!</label>).)*<{tag}{re.escape(attributes)}>", page, re.S)
        assert "aria-label" in attributes or in_label, attributes


def test_ids_that_scripts_use_exist():
    ids = set(re.findall(r'\bid="([^"]+)"', FILES["/"]))
    scripts = "".join(text for path, text in FILES.items() if path.endswith(".js"))
    used = set(re.findall(r'(?:\bat|getElementById)\("([^"]+)"\)', scripts))
    assert used <= ids and len(used) > 40


def test_files_are_sent_under_a_strict_policy(http):
    for file in page_files():
        answer = http.get(file.path)
        assert answer.status_code == 200 and answer.content == file.content
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"] == file.media_type
    assert "'unsafe" not in POLICY and "*" not in POLICY and "default-src 'none'" in POLICY
    assert http.head("/").status_code == 200 and http.post("/").status_code == 405


def test_what_the_events_tell(http):
    about, first, second = read(http, 3)
    assert about == {
        "about": {
            "version": about["about"]["version"],
            "model": "scripted",
            "models": ["scripted"],
            "max_model_len": 512,
            "max_logprobs": about["about"]["max_logprobs"],
            "sampling": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
            "has_sleep_mode": False,
            "has_admin_key": False,
        }
    }
    assert first["stats"]["num_running"] == 2 and first["stats"]["preemptions_total"] == 5
    assert first["sleep"] == {"state": "awake", "tags": [], "idle_s": 0.0, "next": None}
    assert first["device"] == {"num_blocks": 8, "blocks_per_cell": 1, "num_cells": 8, "cells": "AYIC"}
    assert first["host"]["cells"] == "" and first["block_size"] == 16 and first["resident_bytes"] == 1 << 20
    [request] = first["requests"]
    assert request == {
        "request_id": "012345-7", "queue": "running", "prompt_len": 20, "output_len": 3, "num_blocks": 2
    }  # fmt: skip
    assert second["time_s"] > first["time_s"]


@pytest.mark.parametrize(
    ("request_id", "short"),
    [
        ("chatcmpl-3fa94b22aa-12", "3fa94b-12"), ("cmpl-mine-too-1234567", "mine-t-123456"), ("abc-5", "abc-5"),
        ("x" * 128, "xxxxxx"), ("", ""),
    ],
)  # fmt: skip
def test_requests_are_named_by_a_part_of_their_ids(request_id, short):
    assert short_id(request_id) == short


def test_nobody_watching_costs_nothing_and_many_cost_as_one(scripted, monkeypatch):
    monkeypatch.setattr(feed_module, "PERIOD_S", 0.01)

    async def main() -> None:
        engine = scripted()
        feed = Feed(ServerContext(engine, ServerOptions()))

        async def watch(num: int) -> None:
            async with contextlib.aclosing(feed.events(True)) as events:
                for _ in range(num):
                    await anext(events)

        await asyncio.gather(*(watch(8) for _ in range(20)))
        assert 7 <= engine.num_looks <= 7 + 20, "one each at the start, and not one each later"
        await asyncio.sleep(0.05)
        before = engine.num_looks
        await asyncio.sleep(0.1)
        assert engine.num_looks == before

    asyncio.run(main())


def test_a_pool_that_takes_long_to_look_at_is_looked_at_less_often(scripted):
    async def main() -> None:
        engine = scripted()
        feed = Feed(ServerContext(engine, ServerOptions()))
        look = engine.occupancy
        for seconds, period_s in ((0.001, PERIOD_S), (0.01, 1.0), (0.5, MAX_PERIOD_S)):

            async def slow_look(max_cells: int, seconds: float = seconds) -> Occupancy:
                return dataclasses.replace(await look(max_cells), seconds=seconds)

            engine.occupancy = slow_look
            async with contextlib.aclosing(feed.events(True)) as events:
                await anext(events)
                await anext(events)
            assert feed._period_s == pytest.approx(period_s)

    asyncio.run(main())


def test_a_long_step_holds_up_the_picture_only(scripted, monkeypatch):
    monkeypatch.setattr(feed_module, "PERIOD_S", 0.01)

    async def main() -> None:
        engine = scripted()
        feed, look, over = Feed(ServerContext(engine, ServerOptions())), engine.occupancy, asyncio.Event()

        async def late_look(max_cells: int) -> Occupancy:
            await over.wait()
            return await look(max_cells)

        engine.occupancy = late_look
        async with contextlib.aclosing(feed.events(True)) as events:
            await anext(events)
            facts = [json.loads((await anext(events))[6:]) for _ in range(3)]
            assert all("stats" in each and "device" not in each for each in facts)
            over.set()
            while "device" not in json.loads((await anext(events))[6:]):
                pass
        assert engine.num_looks >= 1

    asyncio.run(main())


def test_a_running_watcher_does_not_hold_up_the_end(start, scripted):
    server = start(scripted())
    with server.http() as http, http.stream("GET", EVENTS_PATH) as response:
        lines = response.iter_lines()
        next(lines)
        server.signal()
        server.join()
        for _ in lines:
            pass


class TestWhoMaySeeIt:
    def test_keys_guard_the_events_and_not_the_files(self, start, scripted):
        with start(scripted(), api_keys=("secret",)).http() as http:
            assert {http.get(path).status_code for path in PAGE_PATHS} == {200}
            assert http.get(EVENTS_PATH).status_code == 401
            assert http.get(EVENTS_PATH, headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert len(read(http, 2, Authorization="Bearer secret")) == 2
            for path in ("/page", "/page/", "/page/../v1/models", "/page/x.js"):
                assert http.get(path).status_code == 401, path

    def test_foreign_pages_and_names_see_nothing(self, start, scripted):
        with start(scripted()).http() as http:
            for path in (*PAGE_PATHS, EVENTS_PATH):
                assert http.get(path, headers={"Host": "evil.example"}).status_code == 403
                assert http.get(path, headers={"Origin": "http://evil.example"}).status_code == 403

    def test_it_can_be_left_out(self, start, scripted):
        with start(scripted(), page=False).http() as http:
            assert {http.get(path).status_code for path in (*PAGE_PATHS, EVENTS_PATH)} == {404}
