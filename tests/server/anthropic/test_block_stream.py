"""Content blocks of a reply with thinking, text and calls."""

import pytest
from anthropic.types import ContentBlock, RawMessageStreamEvent
from kit.template.events import REPLY
from pydantic import TypeAdapter

from lullm.server.anthropic.block_stream import BlockStream, content_blocks
from lullm.text.reply.event import CallArguments, CallEnd, CallStart

BLOCKS = [
    {"type": "thinking", "thinking": "let me see", "signature": ""},
    {"type": "text", "text": "I look"},
    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Paris"}},
    {"type": "tool_use", "id": "call_2", "name": "time", "input": {}},
    {"type": "text", "text": "done"},
]


def test_whole():
    assert content_blocks(REPLY) == BLOCKS
    for block in content_blocks(REPLY):
        TypeAdapter(ContentBlock).validate_python(block, strict=True)
    assert content_blocks([]) == []


def test_each_block_begins_and_ends_once_in_order():
    stream = BlockStream()
    events = [event for piece in REPLY for event in stream.feed([piece])] + list(stream.close())
    for event in events:
        TypeAdapter(RawMessageStreamEvent).validate_python(event, strict=True)
    open_index, blocks = None, []
    for event in events:
        if event["type"] == "content_block_start":
            assert open_index is None and event["index"] == len(blocks)
            open_index = event["index"]
            blocks.append(event["content_block"]["type"])
        elif event["type"] == "content_block_stop":
            assert event["index"] == open_index
            open_index = None
        else:
            assert event["index"] == open_index
    assert open_index is None and blocks == [block["type"] for block in BLOCKS]


@pytest.mark.parametrize(
    ("cut", "known"), [('{"a": 1, "b": "x', {"a": 1, "b": "x"}), ("{", {}), ("[1]", {}), ("nonsense", {}), ("", {})]
)
def test_arguments_that_the_end_has_cut(cut, known):
    [block] = content_blocks([CallStart(0, "call_1", "f"), CallArguments(0, cut), CallEnd(0)])
    assert block["input"] == known
