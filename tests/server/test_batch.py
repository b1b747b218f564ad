"""Batch files: an answer per line, in order, whatever is wrong with some."""

import asyncio
import json

import pytest

from lullm.server.app import build_app
from lullm.server.batch import batch_file
from lullm.server.batch.batch_file import answers
from lullm.server.options import ServerOptions


def line(custom_id, url="/v1/completions", **body):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def answered(engine, lines):
    async def collect():
        return [answer async for answer in answers(build_app(engine, ServerOptions(any_model_name=True)), lines)]

    return asyncio.run(collect())


def test_answers_are_those_of_the_server_in_order(scripted):
    talk = [{"role": "user", "content": "x"}]
    chat = line("b", "/v1/chat/completions", model="gpt", messages=talk, max_tokens=4)
    found = answered(scripted(), [line("a", prompt="x", max_tokens=3), b"\n", chat, line("c", prompt=["x", "y"])])
    assert [answer["custom_id"] for answer in found] == ["a", "b", "c"]
    assert [answer["error"] for answer in found] == [None] * 3
    responses = [answer["response"] for answer in found]
    assert [response["status_code"] for response in responses] == [200] * 3
    assert responses[0]["body"]["choices"][0]["text"] == "0:t"
    assert responses[1]["body"]["choices"][0]["message"]["content"] == "0:th"
    assert len(responses[2]["body"]["choices"]) == 2 and responses[0]["request_id"] == responses[0]["body"]["id"]
    assert len({answer["id"] for answer in found}) == 3


@pytest.mark.parametrize(
    ("wrong", "custom_id", "param"),
    [
        (b"{", None, None),
        (b"[]", None, None),
        (b'{"custom_id": "a"}', "a", "method"),
        (line("a", "/v1/nothing"), "a", "url"),
        (line("a", "/sleep"), "a", "url"),
        (line("a", prompt="x", stream=True), "a", "stream"),
        (line("a", prompt="x", n=0), "a", "n"),
    ],
)
def test_a_wrong_line_has_an_error_in_its_place(scripted, wrong, custom_id, param):
    first, bad, last = answered(scripted(), [line("1", prompt="x"), wrong, line("3", prompt="x")])
    assert first["error"] is None is last["error"] and last["custom_id"] == "3"
    assert bad["custom_id"] == custom_id and bad["error"]["param"] == param and bad["error"]["message"]


def test_lines_run_together_but_not_all_at_once(scripted, monkeypatch):
    monkeypatch.setattr(batch_file, "MAX_OPEN", 5)
    engine = scripted()
    num_open, most = 0, 0
    stream = engine.stream

    async def counted(*arguments):
        nonlocal num_open, most
        num_open += 1
        most = max(most, num_open)
        async for output in stream(*arguments):
            yield output
        num_open -= 1

    engine.stream = counted
    found = answered(engine, [line(str(number), prompt="x", max_tokens=4) for number in range(20)])
    assert [answer["custom_id"] for answer in found] == [str(number) for number in range(20)]
    assert 1 < most <= 5
